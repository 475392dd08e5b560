package rpc

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/operatorfeed"
	"github.com/kvasir-dev/kvasir/test/wallclock"
)

var update = flag.Bool("update", false, "write the golden files")

const operatedPool = "default/m"

// fullState has something in every field.
func fullState() operatorfeed.State {
	s := operatorfeed.State{
		Picker: "m-picker-0", Incarnation: 1 << 63, PoolGeneration: 7, PolicyName: "chat", PolicyGeneration: 3, Ready: true,
		KeyID:       "3fa9c1d27b60e815",
		Tokens:      operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: "ProbeFailed", Message: "texts differ"},
		Predictions: operatorfeed.Finding{Verdict: operatorfeed.Unclear, Reason: "TooFewReplies"},
		Gateways:    operatorfeed.Finding{Verdict: operatorfeed.Good, Reason: "Conforms"},
		Resources:   operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: "MemoryShort", Message: "90 % of memory"},
		Model:       operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: "ModelNotListed", Message: "m-0 lists other"},
		Accepted:    operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: "Invalid", Message: "Secret key has no certificate"},

		AcceptedGeneration: 8, Unserved: true, Resolved: true,
		Pods: map[string]operatorfeed.PodState{
			"uid-0": {
				Draining: true, InFlight: 2, Synced: true, UncachedTokens: 900, WorkSeconds: 2.5, Value: 1234.5, Waiting: 3, KVUsage: 0.5, Blocks: 77,
				Busy: 5, ReadAge: 40 * time.Millisecond,
			},
			"uid-1": {Degraded: true, Reason: "Lagging"},
		},
		Totals: operatorfeed.Totals{
			Requests: 1, PromptTokens: 2, HitTokens: 3, PrefillTokens: 4, WorkSeconds: 5.5, Evictions: 6, Waiting: 8, Refused: 9,
			LastRequest: time.UnixMilli(1_800_000_000_123),
		},
	}
	for i := range s.Totals.TTFT {
		s.Totals.TTFT[i] = int64(i)
	}
	return s
}

func TestStatesGoOverTheWireAsTheyAre(t *testing.T) {
	want := fullState()
	now := want.Totals.LastRequest.Add(1500 * time.Millisecond)
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(stateMessage(&want, now))
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "operate_state.hex")
	if *update {
		if err := os.WriteFile(golden, []byte(hex.EncodeToString(bytes)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	old, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	// What an earlier version has sent is read as it was meant, and nothing else is sent now.
	var m OperateState
	if err := proto.Unmarshal(old, &m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, stateOf(&m, now)); diff != "" {
		t.Errorf("read from the golden file (-want +got):\n%s", diff)
	}
	if !cmp.Equal(old, bytes) {
		t.Errorf("the bytes are not those of %s", golden)
	}
	if diff := cmp.Diff(operatorfeed.State{Pods: map[string]operatorfeed.PodState{}}, stateOf(&OperateState{}, now)); diff != "" {
		t.Errorf("an empty message (-want +got):\n%s", diff)
	}
	more := stateOf(&OperateState{Totals: &OperateTotals{Ttft: make([]int64, 100)}}, now)
	if more.Totals.TTFT.Count() != 0 {
		t.Error("buckets that are not known count")
	}
}

// TestTheLastRequestIsAsLongAgoAsThePickerSays: whatever the clocks of the picker and the operator show. A pool is scaled to zero
// by it.
func TestTheLastRequestIsAsLongAgoAsThePickerSays(t *testing.T) {
	now := time.Now()
	for _, apart := range []time.Duration{0, time.Hour, -time.Hour} {
		s := fullState()
		s.Totals.LastRequest = wallclock.Set(now.Add(-time.Minute), apart) // it came after the picker's clock was set
		m := stateMessage(&s, wallclock.Set(now, apart))
		if got := now.Sub(stateOf(m, now).Totals.LastRequest); got != time.Minute {
			t.Errorf("picker ahead by %s: the last request was %s ago, want 1m", apart, got)
		}
		s.Totals.LastRequest = now.Add(-time.Minute) // it came before that
		m = stateMessage(&s, wallclock.Set(now, apart))
		if got := now.Sub(stateOf(m, now).Totals.LastRequest); got != time.Minute {
			t.Errorf("picker set by %s: the last request was %s ago, want 1m", apart, got)
		}
		if got := wallclock.Set(now, apart).UnixMilli() - m.GetTotals().GetLastRequest(); got != time.Minute.Milliseconds() {
			t.Errorf("picker set by %s: for earlier operators the last request was %d ms ago by the picker's clock", apart, got)
		}
	}
	earlier := &OperateState{Totals: &OperateTotals{LastRequest: 1_800_000_000_123}}
	if got := stateOf(earlier, now).Totals.LastRequest; !got.Equal(time.UnixMilli(1_800_000_000_123)) {
		t.Errorf("an earlier picker's last request was at %s", got)
	}
	for _, age := range []int64{-1 << 63, -1, 1<<63 - 1} {
		lying := &OperateState{Totals: &OperateTotals{LastRequestAge: age}}
		if got := stateOf(lying, now).Totals.LastRequest; got.After(now) {
			t.Errorf("an age of %d ms makes a request of the future, %s", age, got)
		}
	}
}

// pickerReplica is a picker replica as far as the operator sees it, on a real socket.
type pickerReplica struct {
	service *OperateService
	address string
	stop    func()

	mu    sync.Mutex
	state operatorfeed.State
}

func (r *pickerReplica) State(pool string) (operatorfeed.State, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, pool == operatedPool
}

// say changes the state and sends it at once.
func (r *pickerReplica) say(change func(*operatorfeed.State)) {
	r.mu.Lock()
	pods := map[string]operatorfeed.PodState{}
	for uid, pod := range r.state.Pods {
		pods[uid] = pod
	}
	r.state.Pods = pods
	change(&r.state)
	r.mu.Unlock()
	r.service.Changed()
}

func (r *pickerReplica) mark(uid string) {
	r.say(func(s *operatorfeed.State) { s.Pods[uid] = operatorfeed.PodState{Draining: true} })
}

// newPickerReplica serves at an address, any free one if it is empty.
func newPickerReplica(t *testing.T, name, address string, auth Authenticator) *pickerReplica {
	t.Helper()
	r := &pickerReplica{state: operatorfeed.State{Picker: name, Incarnation: 1, Ready: true, Pods: map[string]operatorfeed.PodState{"u": {}}}}
	r.service = &OperateService{Auth: auth, State: r.State, PublishEvery: time.Hour}
	server := NewServer(ServerOptions{Operate: r.service})
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	r.address = l.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	r.stop = sync.OnceFunc(func() {
		server.Close()
		<-done
	})
	t.Cleanup(r.stop)
	return r
}

func (r *pickerReplica) replica() Replica {
	return Replica{Name: r.state.Picker, Address: r.address, Ready: true}
}

// operator listens without waiting long between attempts.
func operator(t *testing.T, dial DialOptions, changed func(string)) *Pickers {
	t.Helper()
	p := NewPickers(PickersOptions{
		Dial:       func(string) (DialOptions, error) { return dial, nil },
		MinBackoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond, OnChange: changed,
	})
	t.Cleanup(p.Close)
	return p
}

func acknowledged(p *Pickers, uid string) func() bool {
	return func() bool {
		v := p.View(operatedPool)
		_, ok := v.Acknowledged(uid)
		return ok
	}
}

func TestTheOperatorHearsAtOnceWhatAllReplicasFollow(t *testing.T) {
	changes := make(chan string, 100)
	p := operator(t, DialOptions{}, func(pool string) { changes <- pool })
	if acknowledged(p, "u")() {
		t.Fatal("acknowledged before any replica is known")
	}
	a, b := newPickerReplica(t, "a", "", Anybody{}), newPickerReplica(t, "b", "", Anybody{})
	p.Set(operatedPool, []Replica{a.replica(), b.replica()})
	if acknowledged(p, "u")() {
		t.Fatal("acknowledged before any replica has reported")
	}
	eventually(t, "both replicas", func() bool { v := p.View(operatedPool); return len(v.Replicas) == 2 })
	a.mark("u") // full states are sent only once an hour: this one arrives because changes are sent at once
	eventually(t, "the mark of one", func() bool {
		v := p.View(operatedPool)
		return v.Replicas[0].Pods["u"].Draining
	})
	if acknowledged(p, "u")() {
		t.Fatal("one of two has not acknowledged the mark")
	}
	b.mark("u")
	eventually(t, "the acknowledgement", acknowledged(p, "u"))
	a.say(func(s *operatorfeed.State) { s.Pods["u"] = operatorfeed.PodState{} })
	eventually(t, "the mark lifted", func() bool { return !acknowledged(p, "u")() })
	if n := len(changes); n < 5 || <-changes != operatedPool {
		t.Errorf("%d changes were reported, want at least those that the test made", n)
	}
}

// A replica that can no longer apply its pool goes on with what it had, so that nothing else of its state changes.
func TestTheOperatorHearsAtOnceWhatAReplicaRefuses(t *testing.T) {
	changes := make(chan string, 100)
	p := operator(t, DialOptions{}, func(pool string) { changes <- pool })
	a := newPickerReplica(t, "a", "", Anybody{})
	p.Set(operatedPool, []Replica{a.replica()})
	eventually(t, "the replica", func() bool { v := p.View(operatedPool); return len(v.Replicas) == 1 })
	for len(changes) > 0 {
		<-changes
	}
	bad := operatorfeed.Finding{Verdict: operatorfeed.Bad, Reason: "Invalid"}
	for _, accepted := range []operatorfeed.Finding{bad, {Verdict: operatorfeed.Good}} {
		a.say(func(s *operatorfeed.State) { s.Accepted, s.AcceptedGeneration = accepted, 2 })
		eventually(t, "the change", func() bool { return len(changes) > 0 })
		<-changes
	}
}

func TestAReplicaThatIsNotHeardHoldsDrainsUpUntilItsPodIsGone(t *testing.T) {
	p := operator(t, DialOptions{}, nil)
	a, b := newPickerReplica(t, "a", "", Anybody{}), newPickerReplica(t, "b", "", Anybody{})
	b.stop()
	p.Set(operatedPool, []Replica{a.replica(), b.replica(), {Name: "c"}})
	a.mark("u")
	eventually(t, "one replica", func() bool { v := p.View(operatedPool); return len(v.Replicas) == 1 })
	if v := p.View(operatedPool); len(v.Silent) != 1 || v.Silent[0] != "b" || acknowledged(p, "u")() {
		t.Fatalf("unheard: %v", v.Silent)
	}
	p.Set(operatedPool, []Replica{a.replica(), {Name: "c"}})
	eventually(t, "the acknowledgement", acknowledged(p, "u"))
}

func TestARestartedReplicaIsHeardAgain(t *testing.T) {
	p := operator(t, DialOptions{}, nil)
	a := newPickerReplica(t, "a", "", Anybody{})
	p.Set(operatedPool, []Replica{a.replica()})
	a.mark("u")
	eventually(t, "the mark", acknowledged(p, "u"))
	a.stop()
	again := newPickerReplica(t, "a", a.address, Anybody{})
	again.say(func(s *operatorfeed.State) { s.Incarnation = 2 })
	eventually(t, "the new process", func() bool {
		v := p.View(operatedPool)
		return len(v.Replicas) == 1 && v.Replicas[0].Incarnation == 2
	})
	if acknowledged(p, "u")() {
		t.Error("the new process has not acknowledged the mark")
	}
}

func TestAnotherPickerAtAnAddressIsNotTaken(t *testing.T) {
	p := operator(t, DialOptions{}, nil)
	a := newPickerReplica(t, "a", "", Anybody{})
	a.mark("u")
	p.Set(operatedPool, []Replica{{Name: "b", Address: a.address, Ready: true}})
	time.Sleep(100 * time.Millisecond)
	if v := p.View(operatedPool); len(v.Replicas) != 0 {
		t.Errorf("%s was taken for b", v.Replicas[0].Picker)
	}
}

func TestOnlyTheOperatorIsTold(t *testing.T) {
	key := newSigner(t, "k")
	tokens := Tokens{
		Issuer: "https://cluster", Audience: OperateAudience, Now: func() time.Time { return testNow },
		Keys: &Keys{Fetch: func(context.Context) ([]byte, error) { return set(t, key), nil }},
	}
	account := Account{Tokens: tokens, Namespace: "kvasir-system", Name: "manager"}
	claims := func(audience, subject string) string {
		c := goodClaims()
		c["aud"], c["sub"] = []string{audience}, subject
		delete(c, "kubernetes.io") // whether it is bound to a pod does not matter
		return key.sign(c)
	}
	const manager = "system:serviceaccount:kvasir-system:manager"
	for name, tc := range map[string]struct {
		token string
		wrong string
	}{
		"the operator":         {token: claims(OperateAudience, manager)},
		"another audience":     {token: claims(Audience, manager), wrong: "aud"},
		"another account":      {token: claims(OperateAudience, "system:serviceaccount:kvasir-system:default"), wrong: "operator"},
		"a person of the name": {token: claims(OperateAudience, "manager"), wrong: "operator"},
		"no token":             {token: "x", wrong: "token"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := account.Authenticate(call(tc.token))
			if (err != nil) != (tc.wrong != "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("error %v, want %q", err, tc.wrong)
			}
		})
	}

	secret := func() ([]byte, error) { return []byte("0123456789abcdef"), nil }
	a := newPickerReplica(t, "a", "", SharedSecret{Read: secret})
	stranger, known := operator(t, DialOptions{}, nil), operator(t, DialOptions{Token: secret, TokenInClear: true}, nil)
	known.Set(operatedPool, []Replica{a.replica()})
	stranger.Set(operatedPool, []Replica{a.replica()})
	eventually(t, "a state", func() bool { v := known.View(operatedPool); return len(v.Replicas) == 1 })
	if v := stranger.View(operatedPool); len(v.Replicas) != 0 {
		t.Error("an unauthenticated operator received state")
	}
	if _, err := stranger.Warm(t.Context(), operatedPool, "u", 1, time.Second); !errors.Is(err, ErrNoPicker) {
		t.Errorf("a stranger may have pods warmed up: %v", err)
	}
}

func TestWarmingUpIsPassedOn(t *testing.T) {
	p := operator(t, DialOptions{}, nil)
	a := newPickerReplica(t, "a", "", Anybody{})
	a.service.WarmUp = func(_ context.Context, o WarmOrder, progress func(WarmDone)) error {
		if o.Pod != "u" {
			return ErrUnknownPod
		}
		if want := (WarmOrder{Pool: operatedPool, Pod: "u", MaxTokens: 1000, MaxTime: 7 * time.Second}); o != want {
			t.Errorf("order %+v, want %+v", o, want)
		}
		progress(WarmDone{Prompts: 1, Tokens: 100})
		progress(WarmDone{Prompts: 2, Tokens: 300, Skipped: 1})
		return nil
	}
	p.Set(operatedPool, []Replica{a.replica()})
	eventually(t, "the replica", func() bool { v := p.View(operatedPool); return len(v.Replicas) == 1 })
	done, err := p.Warm(t.Context(), operatedPool, "u", 1000, 7*time.Second)
	if want := (WarmDone{Prompts: 2, Tokens: 300, Skipped: 1}); err != nil || done != want {
		t.Errorf("%+v, %v; want %+v", done, err, want)
	}
	if _, err := p.Warm(t.Context(), operatedPool, "v", 1000, 7*time.Second); err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("error %v for a pod that is not known", err)
	}
	if _, err := p.Warm(t.Context(), "default/other", "u", 1000, 7*time.Second); !errors.Is(err, ErrNoPicker) {
		t.Errorf("error %v for a pool that is not known", err)
	}
}

func TestNothingIsLeftOfPoolsThatAreForgotten(t *testing.T) {
	before := runtime.NumGoroutine()
	p := operator(t, DialOptions{}, nil)
	a := newPickerReplica(t, "a", "", Anybody{})
	for range 20 {
		p.Set(operatedPool, []Replica{a.replica(), {Name: "b", Address: "127.0.0.1:1"}})
		p.Set(operatedPool, []Replica{{Name: "a", Address: a.address + "0"}})
		p.Forget(operatedPool)
	}
	a.stop()
	eventually(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// TestStreamsOfOnePoolLeaveThoseOfOthers: a picker of a fleet sends the states of all its pools, however many there are, and one
// pool has no more streams than it needs.
func TestStreamsOfOnePoolLeaveThoseOfOthers(t *testing.T) {
	var s OperateService
	var leave []func()
	for i := range maxWatches {
		_, end, err := s.join("default/m")
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		leave = append(leave, end)
	}
	if _, _, err := s.join("default/m"); err == nil {
		t.Errorf("%d streams about one pool", maxWatches+1)
	}
	bell, end, err := s.join("default/other")
	if err != nil {
		t.Fatalf("another pool: %v", err)
	}
	s.Changed()
	select {
	case <-bell:
	default:
		t.Error("the stream of the other pool was not woken")
	}
	end()
	for _, end := range leave {
		end()
	}
	if len(s.watches) != 0 {
		t.Errorf("%d pools without a stream are remembered", len(s.watches))
	}
}
