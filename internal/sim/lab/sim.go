package lab

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// Config is one run: a workload, a fleet and a strategy. It has many fields because each is a setting that runs compare.
type Config struct {
	Workload *Workload
	// Strategy under test.
	Strategy Strategy
	// Pods and the KV cache of each, in tokens; 0 takes the profile's.
	Pods, KVTokens int
	Profile        enginemodel.Profile
	// Uneven takes engines that are not like vLLM's model, on the same GPUs (enginemodel.Config).
	Uneven bool
	// BlockTokens is the engines' block size; 0 takes 16.
	BlockTokens int
	// Speed multiplies the arrivals' rate; 0 is 1.
	Speed float64
	// Think sends each turn of a session some time after the answer to the one before, not by its timestamp.
	Think bool
	// Horizon ends the run, whatever is under way then; 0 waits for all.
	Horizon time.Duration
	// Retries are how often a client sends a turn again that was refused, after its Retry-After. After a further refusal
	// the client gives up the session. With 0, clients ignore refusals: the next turn arrives as if this one had been
	// answered.
	Retries int
	// Pickers share the requests by turns, each with its own index and load; 0 is 1. They exchange what they have assigned
	// to the pods, as pickers do, unless NoExchange is set.
	Pickers    int
	NoExchange bool
	// EventLag is the time from the end of a step until the pickers have its cache events.
	EventLag time.Duration
	// ScrapeEvery is how often the pickers read the engines' metrics; 0 is 200 ms, as the scraper does under load.
	ScrapeEvery time.Duration
	// Seed of the arrivals and of the strategy's own chance.
	Seed uint64
	// Admission configures what happens when the fleet is full; with the zero value no request waits in the picker, and all
	// wait in the engines. DefaultAdmission is what pools have.
	Admission picker.AdmissionSpec
	// Adapters that the workload's requests are for; the zero value is for workloads without.
	Adapters Adapters
	// Islands are where the pods lie; the zero value is where the pickers are.
	Islands Islands
	// Stall of a pod; the zero value is for none.
	Stall Stall
	// Pools behind one door, in place of one pool of Pods, and Routes to them. Requests name what they are for (Request.Model). They need
	// one picker.
	Pools  []Pool
	Routes []modelroute.Route
	// Roles of the pods; with the zero value all serve whole requests.
	Roles Roles
	// Gaps measures the times between tokens.
	Gaps bool
	// Shadows are strategies that the pickers compare with the applied one.
	Shadows []picker.ShadowSpec
	// Decisions gets the pickers' decision log; nil keeps none.
	Decisions picker.DecisionLog
	// NewStrategy makes the strategy; policy.New when nil.
	NewStrategy func(policy.Config) (policy.Policy, error)
}

const (
	model = "lab"
	// sessionHeader names the session of a request, as the default policy reads it.
	sessionHeader = "x-session-id"
	// tenantHeader names its tenant, where there are any.
	tenantHeader = "x-gateway-inference-fairness-id"
	// contextLimit is the longest prompt with its answer, in tokens, where the cache would hold more.
	contextLimit = 131_072
)

var errConfig = errors.New("lab")

// DefaultAdmission is the admission of a pool whose policy does not set it.
func DefaultAdmission() picker.AdmissionSpec {
	return picker.AdmissionSpec{
		Queue: true, WaitBudget: 250 * time.Millisecond,
		Limits: admission.Limits{Requests: 1024, Bytes: 256 << 20, TTL: time.Minute, Hold: 5 * time.Minute},
	}
}

func (c *Config) fill() error {
	if c.BlockTokens == 0 {
		c.BlockTokens = enginemodel.DefaultBlockSize
	}
	if c.KVTokens == 0 {
		c.KVTokens = c.Profile.KVTokens
	}
	if c.Speed == 0 {
		c.Speed = 1
	}
	if len(c.Pools) > 0 {
		c.Pods = 0
		for i := range c.Pools {
			c.Pods += c.Pools[i].Pods
		}
	}
	if c.Pickers == 0 {
		c.Pickers = 1
	}
	if c.ScrapeEvery == 0 {
		c.ScrapeEvery = 200 * time.Millisecond
	}
	if c.Pods < 1 || c.Pods > 4096 || !(c.Speed > 0) || c.Pickers < 1 || c.Retries < 0 || c.Retries > 100 || c.EventLag < 0 ||
		c.Roles.Prefillers < 0 || c.Roles.Prefillers >= c.Pods ||
		len(c.Pools) > 0 && c.Pickers > 1 ||
		c.Islands.Away < 0 || c.Islands.Away > c.Pods || c.Islands.Way < 0 || c.Stall.For < 0 || c.BlockTokens < 1 || c.KVTokens < c.BlockTokens {
		return fmt.Errorf("%w: %d pods of %d tokens in blocks of %d, speed %g, %d pickers, lag %v: out of range", errConfig,
			c.Pods, c.KVTokens, c.BlockTokens, c.Speed, c.Pickers, c.EventLag)
	}
	return nil
}

// longest prompt with its answer that the engines take, in tokens.
func (c *Config) longest() int { return min(contextLimit, c.KVTokens) }

// sim is a run under way.
type sim struct {
	Config
	now     time.Duration
	agenda  agenda
	pods    []*pod
	pickers []*picker.Picker
	feeds   [][]picker.Feed // of each picker, by pod
	seed    kvblock.Seed
	roots   map[string]kvblock.Key // of keys, by model
	keys    []kvblock.Key          // scratch: of a request
	stored  []kvblock.Key          // and of an event, with its hashes
	hashes  []kvevent.Hash

	arrivals []time.Duration
	// next is the turn that follows a request in its session, -1 for none, with the time between answer and turn.
	next  []int
	think []time.Duration

	live    []*sent // by request, nil unless under way
	by      []int   // by request, the picker that it went to
	refused []uint8 // by request, how often
	open    int     // requests not ended yet, including future ones
	waiting []waiting
	doors   doors
	news    []news // cache events under way to the pickers, in order
	peers   exchange
	out     *recorder
	arrived int // so far: requests go to the pickers by turns
}

// never is later than the end of any run.
const never = time.Duration(math.MaxInt64)

// sent is a request under way.
type sent struct {
	decision *picker.Decision
	request  *enginemodel.Request
	pod      int
	begun    bool // it has had its first token
	// prefilled is what another pod has computed of a request that was handed over; nil for others.
	prefilled *prefilled
	last      time.Duration // the last token, if gaps are measured
	// arrived is when it arrived, at when it was sent to the pod.
	arrived, at time.Duration
}

// Run plays a workload and returns the result.
func Run(c Config) (*Result, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	c.Workload = c.Workload.Cap(c.Strategy.MaxTurns).Fitting(c.longest())
	s := &sim{Config: c}
	if err := s.setUp(); err != nil {
		return nil, err
	}
	for s.open > 0 && (c.Horizon <= 0 || s.agenda.heap[0].at < c.Horizon) {
		s.advance()
	}
	s.cut()
	return s.out.result(s), nil
}

// advance to the next event.
func (s *sim) advance() {
	e := s.agenda.pop()
	s.now = e.at
	switch e.kind {
	case arrival:
		s.arrive(int(e.n))
	case stepEnd:
		s.endStep(int(e.n))
	case reached:
		s.hand(s.live[e.n])
	case begins, ends:
		s.answered(e.kind, int(e.n))
		s.poll()
	case lagOver:
		s.deliver()
	case scrapes:
		s.scrape()
	case looks:
		s.look()
	case wakes:
		s.wake(int(e.n))
	case peerSends:
		s.sendToPeer(int(e.n))
	case peerReceives:
		s.receiveFromPeer()
	case broughtIn:
		s.bringIn(int(e.n))
		if !s.pods[e.n].busy {
			s.step(int(e.n))
		}
	}
	s.listen()
}

func (s *sim) setUp() error {
	n := len(s.Workload.Requests)
	s.live, s.by, s.refused, s.open = make([]*sent, n), make([]int, n), make([]uint8, n), n
	s.out = newRecorder(n, s.Pods)
	for i := range s.Pods {
		p, err := s.newPod(i)
		if err != nil {
			return err
		}
		s.pods = append(s.pods, p)
	}
	var outboxes []*replicas.Outbox
	for i := range s.Pickers {
		outboxes = append(outboxes, replicas.NewOutbox(uint64(i)+1))
		p, err := s.newPicker(outboxes[i])
		if err != nil {
			return err
		}
		s.pickers = append(s.pickers, p)
		s.feeds = append(s.feeds, s.feedsOf(p))
	}
	if s.Pickers > 1 && !s.NoExchange {
		s.connect(outboxes)
	}
	s.schedule()
	s.agenda.add(0, scrapes, 0)
	return nil
}

// start of all runs, by the clock of the picker.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (s *sim) clock() time.Time { return start.Add(s.now) }

func (s *sim) newPicker(outbox *replicas.Outbox) (*picker.Picker, error) {
	secret := make([]byte, kvblock.MinSeedBytes)
	seed, err := kvblock.NewSeed(secret)
	if err != nil {
		return nil, err
	}
	s.seed, s.roots = seed, map[string]kvblock.Key{}
	config := s.Strategy.Config
	if config.Type == policy.Random {
		config.Random.Seed = s.Seed + uint64(len(s.pickers))<<32 + 1
	}
	spec := picker.Spec{
		Namespace: model, Name: model, Model: model, BlockTokens: s.BlockTokens, Seed: seed,
		Policy: picker.PolicySpec{
			Strategy: config, SessionKeys: []picker.SessionKey{{Type: "Header", Name: sessionHeader}},
			SessionIdle:    time.Hour,
			Admission:      s.Admission,
			Shadows:        s.Shadows,
			Handoffs:       s.Roles.Rule,
			SpeculationMax: 300 * time.Second, MaxKVUsage: 0.97, CircuitFailures: 5, CircuitOpen: 10 * time.Second, Attempts: 3, LogPercent: 100,
		},
	}
	// As a pool that says nothing of tiers has them; engines here have one.
	spec.Policy.Credit = [kvblock.NumTiers]float64{kvblock.GPU: 1, kvblock.CPU: 0.8, kvblock.Disk: 0.3, kvblock.Remote: 0.3}
	spec.Policy.ReloadRate = [kvblock.NumTiers]float64{kvblock.CPU: 200_000, kvblock.Disk: 30_000, kvblock.Remote: 30_000}
	adapters := map[string]bool{}
	for i := range s.Workload.Requests {
		if name := s.Workload.Requests[i].Adapter; name != "" && !adapters[name] {
			adapters[name] = true
			spec.Adapters = append(spec.Adapters, name)
		}
	}
	for i := range s.Pods {
		name := podName(i)
		spec.Endpoints = append(spec.Endpoints, endpoint.Endpoint{ID: endpoint.ID{Pod: name}, Pod: name, Ready: true, Serving: true,
			RankHeader: -1, Role: s.Roles.of(i)})
	}
	s.settle(&spec)
	p := picker.New(picker.Options{
		Now: s.clock, Island: home, NewStrategy: s.maker(), Peers: outbox, Decisions: s.Decisions, Draw: s.chance(),
	})
	if len(s.Pools) > 0 {
		return p, s.openDoor(p, &spec)
	}
	return p, p.Apply([]picker.Spec{spec})
}

// schedule enters the arrivals that are known beforehand: all, or with think times those of first turns.
func (s *sim) schedule() {
	s.arrivals = s.Workload.Arrivals(s.Seed, s.Speed)
	s.next, s.think = make([]int, len(s.arrivals)), make([]time.Duration, len(s.arrivals))
	last := map[int]int{} // by session
	for i, at := range s.arrivals {
		r := &s.Workload.Requests[i]
		s.next[i] = -1
		before, follows := last[r.Session]
		last[r.Session] = i
		if !s.Think || !follows {
			s.agenda.add(at, arrival, i)
			continue
		}
		s.next[before] = i
		gap := s.Workload.Requests[i].At - s.Workload.Requests[before].At - nominal(s.Workload.Requests[before].Output)
		s.think[before] = max(0, time.Duration(float64(gap)/s.Speed))
	}
}

// arrive picks for a request and sends it to the engine.
func (s *sim) arrive(i int) {
	r := &s.Workload.Requests[i]
	prompt := r.Prompt()
	keys := s.keysOf(r, prompt)
	p := s.arrived % s.Pickers
	s.arrived++
	s.by[i] = p
	s.pick(i, &picker.Keyed{Model: s.asked(r), Header: r.header, Prompt: prompt, Keys: keys, Streamed: true, Splits: true}, s.now)
}

// pick picks for a request that arrived at a time, and sends it or lets it wait.
func (s *sim) pick(i int, in *picker.Keyed, came time.Duration) {
	began := time.Now()
	d, wait, err := s.pickers[s.by[i]].PickKeyed(in)
	for err != nil && s.pickers[s.by[i]].FallBackKeyed(in, err) {
		d, wait, err = s.pickers[s.by[i]].PickKeyed(in)
	}
	s.out.picked(time.Since(began))
	s.demand()
	if wait != nil {
		s.wait(waiting{wait, i, s.by[i], came, in.Routing})
		return
	}
	s.send(i, in.Prompt, d, err, came)
}

// knows reports whether what is known of a request's prompt holds in this run.
func (s *sim) knows(r *Request, prompt []uint32) bool {
	k := r.known
	if k == nil || r.Adapter != "" {
		return false
	}
	k.once.Do(func() {
		k.blockTokens = s.BlockTokens
		k.keys = kvblock.AppendKeys(nil, s.rootOf(model), prompt, s.BlockTokens)
		k.engine = s.pods[0].engine.Know("", "", prompt)
	})
	return k.blockTokens == s.BlockTokens
}

// keysOf a request's prompt, valid until the next call.
func (s *sim) keysOf(r *Request, prompt []uint32) []kvblock.Key {
	if s.knows(r, prompt) {
		return r.known.keys
	}
	s.keys = kvblock.AppendKeys(s.keys[:0], s.rootOf(r.model()), prompt, s.BlockTokens)
	return s.keys
}

// spec is a request as its engine gets it.
func (s *sim) spec(i int, prompt []uint32) enginemodel.Spec {
	r := &s.Workload.Requests[i]
	spec := enginemodel.Spec{Prompt: prompt, MaxTokens: r.Output, Slot: i, Adapter: r.Adapter}
	if s.knows(r, spec.Prompt) {
		spec.Known = r.known.engine
	}
	return spec
}

// header is what a request's headers say.
func (r *Request) header(name string) string {
	switch name {
	case sessionHeader:
		return fmt.Sprintf("session-%d", r.Session)
	case tenantHeader:
		return r.Tenant
	}
	return ""
}

// send sends a request that arrived at a time to the engine that was chosen, which keeps the prompt.
func (s *sim) send(i int, prompt []uint32, d *picker.Decision, err error, came time.Duration) {
	before := s.live[i] // of a request that is handed over
	if err != nil {
		s.drop(i)
		s.refuse(i, err)
		return
	}
	pod := s.out.pods[d.Targets[0].Endpoint.Pod]
	x := &sent{decision: d, pod: pod, arrived: came, at: s.now}
	e := s.pods[pod]
	spec := s.leg(x, before, s.spec(i, prompt))
	pulls := s.pull(d, pod, &spec)
	if x.request, err = e.engine.NewRequest(spec); err != nil {
		d.End(picker.Rejected)
		s.drop(i)
		s.out.shed()
		s.over(i)
		return
	}
	s.live[i] = x
	if before == nil {
		s.out.sent(s.now, pod, d.Targets[0].Predicted)
	} else {
		s.out.sent(s.now, pod, 0)
	}
	if d.Leg() == picker.DecodeLeg {
		s.transfer(i, prompt)
		return
	}
	s.free(x)
	s.depart(i, pulls)
}

// refuse makes a client retry later, or give up the session.
func (s *sim) refuse(i int, err error) {
	var refusal *picker.Error
	if int(s.refused[i]) < s.Retries && errors.As(err, &refusal) && refusal.RetryAfter > 0 {
		s.refused[i]++
		s.agenda.add(s.now+refusal.RetryAfter, arrival, i)
		return
	}
	s.out.shed()
	if s.Retries == 0 {
		s.over(i)
		return
	}
	for ; i >= 0; i = s.next[i] {
		s.open--
	}
}

// cut notes the requests that are with the engines at the end of the run and have no first token.
func (s *sim) cut() {
	for i, x := range s.live {
		if x != nil && !x.begun {
			s.out.served = append(s.out.served, served{
				arrived: x.arrived, first: never, input: x.request.PromptTokens(), tenant: s.Workload.Requests[i].Tenant,
			})
		}
	}
}

// over takes note that a request has ended, and brings the next turn of its session.
func (s *sim) over(i int) {
	s.live[i] = nil
	s.open--
	if next := s.next[i]; next >= 0 {
		s.agenda.add(s.now+s.think[i], arrival, next)
	}
}
