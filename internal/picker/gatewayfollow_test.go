package picker

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// What a gateway reports of the endpoint that served is compared with what it was given. A later endpoint of the list does
// not show that those before it have failed: they are asked.
func TestPicksThatAGatewayDoesNotFollowAreCounted(t *testing.T) {
	const none, other = -1, 9
	for name, tc := range map[string]struct {
		serves, named, attempts int    // serves: index in Targets, other for an endpoint that was no target, none for one of no pool
		found                   string // of each endpoint that was passed over: dead, alive or silent, by its first letter
		want                    GatewayStats
		failures                [3]int64 // of the targets
		inFlight                int      // of the pool
	}{
		"the pick":             {serves: 0, named: 1, want: GatewayStats{Reported: 1}, inFlight: 1},
		"the pick, of a list":  {serves: 0, named: 3, want: GatewayStats{Reported: 1}, inFlight: 1},
		"the pick, after more": {serves: 0, named: 3, attempts: 3, want: GatewayStats{Reported: 1}, inFlight: 1},

		"the next, the pick is dead":               {serves: 1, named: 3, found: "d", want: GatewayStats{Reported: 1, Retried: 1}, failures: [3]int64{1}, inFlight: 1},
		"the next, the pick is alive":              {serves: 1, named: 3, found: "a", want: GatewayStats{Reported: 1}, inFlight: 1},
		"the next, the pick is silent":             {serves: 1, named: 3, found: "s", want: GatewayStats{Reported: 1}, inFlight: 1},
		"the next, the pick was asked":             {serves: 1, named: 3, attempts: 2, found: "a", want: GatewayStats{Reported: 1, Retried: 1}, inFlight: 1},
		"the next, the pick was asked, it is dead": {serves: 1, named: 3, attempts: 2, found: "d", want: GatewayStats{Reported: 1, Retried: 1}, failures: [3]int64{1}, inFlight: 1},
		"the next, the pick was asked, silent":     {serves: 1, named: 3, attempts: 2, found: "s", want: GatewayStats{Reported: 1, Retried: 1}, inFlight: 1},
		"the next, nothing was asked before":       {serves: 1, named: 3, attempts: 1, found: "a", want: GatewayStats{Reported: 1, Unfollowed: 1}, inFlight: 1},
		"the next, nothing was asked, it is dead":  {serves: 1, named: 3, attempts: 1, found: "d", want: GatewayStats{Reported: 1, Retried: 1}, failures: [3]int64{1}, inFlight: 1},
		"the third, both are dead":                 {serves: 2, named: 3, found: "dd", want: GatewayStats{Reported: 1, Retried: 1}, failures: [3]int64{1, 1}, inFlight: 1},
		"the third, the pick is dead":              {serves: 2, named: 3, found: "da", want: GatewayStats{Reported: 1}, failures: [3]int64{1}, inFlight: 1},
		"the third, the next is dead":              {serves: 2, named: 3, found: "ad", want: GatewayStats{Reported: 1}, failures: [3]int64{0, 1}, inFlight: 1},
		"the third, both were asked":               {serves: 2, named: 3, attempts: 3, found: "ad", want: GatewayStats{Reported: 1, Retried: 1}, failures: [3]int64{0, 1}, inFlight: 1},
		"the third, one was asked, both are alive": {serves: 2, named: 3, attempts: 2, found: "aa", want: GatewayStats{Reported: 1}, inFlight: 1},
		"the third, nothing was asked before":      {serves: 2, named: 3, attempts: 1, found: "da", want: GatewayStats{Reported: 1, Unfollowed: 1}, failures: [3]int64{1}, inFlight: 1},

		"one that was not named":                     {serves: 1, named: 1, found: "a", want: GatewayStats{Reported: 1, Unfollowed: 1}, inFlight: 1},
		"one that was not named, for a dead pick":    {serves: 1, named: 1, found: "d", want: GatewayStats{Reported: 1, Retried: 1}, failures: [3]int64{1}, inFlight: 1},
		"one that was not named, for a silent pick":  {serves: 1, named: 1, found: "s", want: GatewayStats{Reported: 1}, inFlight: 1},
		"one that was not named, by its attempts":    {serves: 1, named: 1, attempts: 2, found: "a", want: GatewayStats{Reported: 1, Unfollowed: 1}, inFlight: 1},
		"one that was no target":                     {serves: other, named: 3, found: "aaa", want: GatewayStats{Reported: 1, Unfollowed: 1}, inFlight: 1},
		"one that was no target, for a dead list":    {serves: other, named: 3, found: "ddd", want: GatewayStats{Reported: 1, Retried: 1}, failures: [3]int64{1, 1, 1}, inFlight: 1},
		"one that was no target, for a half of them": {serves: other, named: 3, found: "dad", want: GatewayStats{Reported: 1, Unfollowed: 1}, failures: [3]int64{1, 0, 1}, inFlight: 1},
		"an address that is not the pool's":          {serves: none, named: 3, want: GatewayStats{Reported: 1, Unfollowed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(t, 4)
			spec.Policy.Attempts = 3
			p := newPicker(t, newClock(), spec)
			d := pickBehind(t, p, 0)
			addresses := map[int]string{none: "192.0.2.1:1"}
			targets := map[string]int{}
			for i, target := range d.Targets {
				addresses[i], targets[target.Endpoint.Address] = target.Endpoint.Address, i
			}
			for _, ep := range spec.Endpoints {
				if _, is := targets[ep.Address]; !is {
					addresses[other] = ep.Address
				}
			}
			passed := d.Served(addresses[tc.serves], tc.named, tc.attempts)
			if len(passed) != len(tc.found) {
				t.Fatalf("asks for %d endpoints, want %d", len(passed), len(tc.found))
			}
			for i, one := range passed {
				if one.Address() != addresses[i] || one.Instead() != addresses[tc.serves] {
					t.Errorf("asks for %s in place of %s", one.Address(), one.Instead())
				}
				map[byte]func(){'d': one.Dead, 'a': one.Alive, 's': one.Silent}[tc.found[i]]()
			}
			s := p.Stats()[0]
			tc.want.Gateway = "10.0.0.9"
			if diff := cmp.Diff([]GatewayStats{tc.want}, s.Gateways); diff != "" {
				t.Error(diff)
			}
			inFlight := 0
			for i, e := range s.Endpoints {
				inFlight += e.Load.InFlight
				want := int64(0)
				if at, is := targets[spec.Endpoints[i].Address]; is {
					want = tc.failures[at]
				}
				if e.Failures != want {
					t.Errorf("%s: %d failures, want %d", e.Pod, e.Failures, want)
				}
			}
			if inFlight != tc.inFlight {
				t.Errorf("%d in flight, want %d", inFlight, tc.inFlight)
			}
			d.FirstToken()
			d.End(Completed)
			assertIdle(t, p)
		})
	}
}

// pickBehind picks for a request through a gateway, for a prompt with a seed.
func pickBehind(t *testing.T, p *Picker, seed int) *Decision {
	t.Helper()
	d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion("m", seed, 64, true), Gateway: "10.0.0.9"})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A gateway that follows lists and gets no answer from an endpoint that takes connections has retried or does not know the
// endpoint. It is not blamed for the one, and neither opens the circuit; the other shows in time.
func TestAGatewayThatAvoidsAnEndpointIsDistinguishedFromOneThatRetries(t *testing.T) {
	const requests = 4 * tooUnfollowed
	for name, tc := range map[string]struct {
		every   time.Duration // between two requests
		answers int           // one of so many is answered by the picked endpoint; 0 for none
		want    GatewayStats
		asked   bool // by the gateway's count
		fails   int64
	}{
		"no answer in a long time":         {avoidedFor, 0, GatewayStats{Reported: requests, Unfollowed: requests, Ignores: true}, false, 0},
		"no answer in a moment":            {time.Millisecond, 0, GatewayStats{Reported: requests}, false, 0},
		"few requests in a long time":      {judgedFor + 1, 0, GatewayStats{Reported: requests}, false, 0},
		"an answer now and then":           {avoidedFor, tooUnfollowed, GatewayStats{Reported: requests}, false, 0},
		"one answer in a long time":        {avoidedFor, 2*tooUnfollowed + 1, GatewayStats{Reported: requests, Unfollowed: requests - 1, Ignores: true}, false, 0},
		"every request of them is retried": {avoidedFor / requests, 0, GatewayStats{Reported: requests}, false, 0},
		"no answer in a long time, asked":  {avoidedFor, 0, GatewayStats{Reported: requests, Retried: requests}, true, requests - tooUnfollowed + 1},
		"no answer in a moment, asked":     {time.Millisecond, 0, GatewayStats{Reported: requests, Retried: requests}, true, 0},
		"an answer now and then, asked":    {avoidedFor, tooUnfollowed, GatewayStats{Reported: requests, Retried: requests - requests/tooUnfollowed}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			spec := testSpec(t, 2)
			spec.OrderedDestinations, spec.Policy.CircuitFailures = true, 1
			p := newPicker(t, c, spec)
			for i := 1; i <= requests; i++ {
				d := pickBehind(t, p, 1000*i)
				// Requests that are picked for the other endpoint go there as well.
				for d.Targets[0].Endpoint.ID != testEndpoint(0).ID {
					d.Served(d.Targets[0].Endpoint.Address, 2, 0)
					d.End(Completed)
					i := 1000*i + 100*int(p.Stats()[0].Gateways[0].Reported)
					d = pickBehind(t, p, i)
				}
				serves := 1
				if tc.answers > 0 && i%tc.answers == 0 {
					serves = 0
				}
				attempts := 0
				if tc.asked {
					attempts = serves + 1
				}
				for _, passed := range d.Served(d.Targets[serves].Endpoint.Address, 2, attempts) {
					passed.Alive()
				}
				d.End(Completed)
				c.advance(tc.every)
			}
			s := p.Stats()[0]
			tc.want.Gateway, tc.want.Reported = "10.0.0.9", s.Gateways[0].Reported
			if diff := cmp.Diff([]GatewayStats{tc.want}, s.Gateways); diff != "" {
				t.Error(diff)
			}
			if e := s.Endpoints[0]; e.Failures != tc.fails || tc.fails == 0 && !e.CircuitClosed {
				t.Errorf("%d failures of an endpoint that takes connections, want %d; circuit closed: %v", e.Failures, tc.fails, e.CircuitClosed)
			}
			assertIdle(t, p)
		})
	}
}

// An endpoint that a gateway avoids shows however many others it follows picks for, and the endpoints that are watched are
// bounded.
func TestAvoidedEndpointsAreFoundAmongManyAndBounded(t *testing.T) {
	c := newClock()
	var g gatewayTallies
	id := func(i int) endpoint.ID { return endpoint.ID{Pod: fmt.Sprint(i)} }
	for range 2 * tooUnfollowed {
		g.add("a", func(t *gatewayTally) {
			for range 100 {
				t.served.add(c.Now(), false)
			}
			t.notFollowed(c.Now(), id(0), false)
		})
		c.advance(avoidedFor)
	}
	if s := g.read(c.Now())[0]; !s.Ignores || s.Unfollowed != 2*tooUnfollowed {
		t.Errorf("%+v", s)
	}
	g.add("a", func(t *gatewayTally) {
		for i := range 2 * maxAvoided {
			t.notFollowed(c.Now(), id(i), true)
		}
	})
	if n := len(g.all["a"].avoided); n != maxAvoided {
		t.Errorf("%d endpoints are watched, want %d", n, maxAvoided)
	}
	c.advance(judgedFor + 1)
	if g.read(c.Now())[0].Ignores {
		t.Error("an endpoint counts as avoided long after")
	}
	g.add("a", func(t *gatewayTally) { t.notFollowed(c.Now(), id(3*maxAvoided), true) })
	if n := len(g.all["a"].avoided); n != 1 {
		t.Errorf("%d endpoints are watched after a long time, want 1", n)
	}
}
