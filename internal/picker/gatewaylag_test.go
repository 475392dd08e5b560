package picker

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// A gateway learns of a pod later than the picker. What is picked for the first endpoint of a pool before that is refused by
// the gateway, so requests of gateways wait for so much longer, and those of the picker's own proxy do not.
func TestAFirstEndpointIsNotPickedForGatewaysBeforeTheyKnowIt(t *testing.T) {
	const lag, long = 2 * time.Second, 10 * time.Second
	ask := func(t *testing.T, p *Picker, first int, in Request) <-chan answer {
		in.Route, in.Body = openai.Completions, completion("m", first, 100, true)
		c := make(chan answer, 1)
		go func() {
			d, err := p.Pick(context.Background(), &in)
			c <- answer{d, err, time.Now()}
		}()
		synctest.Wait()
		return c
	}
	first := func(ep *endpoint.Endpoint) bool { return ep.ID == testEndpoint(0).ID }
	for name, tc := range map[string]struct {
		change func(*Spec)
		in     Request
		after  time.Duration // how long the request waits once the pool serves
	}{
		"through a gateway":              {func(*Spec) {}, Request{Remote: true}, lag},
		"with a target for first tokens": {func(s *Spec) { s.Policy.Admission.Slowdown = 5 }, Request{Remote: true}, lag},
		"with less time to live":         {func(s *Spec) { s.Policy.Admission.Limits.TTL = time.Second }, Request{Remote: true}, lag},
		"of a subset":                    {func(*Spec) {}, Request{Remote: true, Allow: first}, lag},
		"through the proxy":              {func(*Spec) {}, Request{}, 0},
		"without a lag":                  {func(s *Spec) { s.Policy.Admission.GatewayLag = 0 }, Request{Remote: true}, 0},
	} {
		for shape, empty := range map[string]func(*Spec){
			"no pods":      func(s *Spec) { s.Endpoints = nil },
			"loading pods": func(s *Spec) { s.Endpoints[0].Ready = false },
		} {
			if tc.in.Allow != nil && shape == "no pods" {
				continue // such a subset is refused at once
			}
			t.Run(name+", "+shape, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					served := queueing(t, 1)
					served.Policy.Admission.GatewayLag = lag
					tc.change(&served)
					before := served
					before.Endpoints = append([]endpoint.Endpoint(nil), served.Endpoints...)
					empty(&before)
					p := started(t, before)
					held := ask(t, p, 0, tc.in)
					time.Sleep(long)
					waits(t, held, "while no endpoint serves")
					begin := time.Now()
					if err := p.Apply([]Spec{served}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(lag / 2)
					late := ask(t, p, 1000, tc.in)
					if err := p.Apply([]Spec{served}); err != nil { // another change begins no other lag
						t.Fatal(err)
					}
					for what, c := range map[string]<-chan answer{"held": held, "later": late} {
						got := <-c
						if got.err != nil {
							t.Fatalf("%s: %v", what, got.err)
						}
						got.d.End(Completed)
						want := tc.after
						if what == "later" {
							want = max(tc.after, lag/2)
						}
						if took := got.at.Sub(begin); took < want || took > want+lookAgain {
							t.Errorf("%s: picked %v after the pool serves, want %v", what, took, want)
						}
					}
					if s := p.Stats()[0].Admission; s.Late+s.Unserved+s.Shed != 0 {
						t.Errorf("refused: %+v", s)
					}
				})
			})
		}
	}
}

// A gateway that knows other pods sends what is picked for a new one to any of them. So for gateways the others are picked,
// and the new one for everybody else. An endpoint that is there when the picker starts is known.
func TestAFurtherEndpointIsNotPickedForGatewaysBeforeTheyKnowIt(t *testing.T) {
	const lag = 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		spec := func(n int) Spec {
			s := queueing(t, n)
			s.Policy.Strategy = policy.Config{Type: policy.RoundRobin}
			s.Policy.Admission.GatewayLag = lag
			return s
		}
		p := started(t, spec(2))
		picks := func(in Request) (ids []int) {
			seen := map[endpoint.ID]bool{}
			for range 6 {
				in.Route, in.Body = openai.Completions, completion("m", 0, 100, true)
				begin := time.Now()
				d, err := p.Pick(t.Context(), &in)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took != 0 {
					t.Errorf("a request has waited for %v", took)
				}
				seen[d.Targets[0].Endpoint.ID] = true
				d.End(Completed)
			}
			for i := range 3 {
				if seen[testEndpoint(i).ID] {
					ids = append(ids, i)
				}
			}
			return ids
		}
		expect := func(when string, gateway, named, proxy []int) {
			t.Helper()
			third := func(ep *endpoint.Endpoint) bool { return ep.ID == testEndpoint(2).ID }
			if got := picks(Request{Remote: true}); !slices.Equal(got, gateway) {
				t.Errorf("%s: for a gateway %v, want %v", when, got, gateway)
			}
			if got := picks(Request{Remote: true, Observed: true}); !slices.Equal(got, proxy) {
				t.Errorf("%s: for a gateway that routes by itself %v, want %v", when, got, proxy)
			}
			if got := picks(Request{}); !slices.Equal(got, proxy) {
				t.Errorf("%s: for the proxy %v, want %v", when, got, proxy)
			}
			if named != nil {
				if got := picks(Request{Remote: true, Allow: third}); !slices.Equal(got, named) {
					t.Errorf("%s: for a gateway that names it %v, want %v", when, got, named)
				}
			}
		}
		apply := func(s Spec) {
			t.Helper()
			if err := p.Apply([]Spec{s}); err != nil {
				t.Fatal(err)
			}
		}
		expect("at the start", []int{0, 1}, nil, []int{0, 1})
		apply(spec(3))
		expect("a new one", []int{0, 1}, []int{2}, []int{0, 1, 2})
		time.Sleep(lag / 2)
		apply(spec(3)) // another change begins no other lag
		expect("later", []int{0, 1}, []int{2}, []int{0, 1, 2})
		time.Sleep(lag / 2)
		expect("after the lag", []int{0, 1, 2}, []int{2}, []int{0, 1, 2})
		away := spec(3)
		away.Endpoints[2].Ready = false
		apply(away)
		expect("one is not ready", []int{0, 1}, nil, []int{0, 1})
		apply(spec(3))
		expect("it is ready again", []int{0, 1}, []int{2}, []int{0, 1, 2})
		time.Sleep(lag)
		expect("after another lag", []int{0, 1, 2}, []int{2}, []int{0, 1, 2})
	})
}

// While the endpoints that gateways know sleep, their requests wait for the one that they do not know yet.
func TestRequestsOfGatewaysWaitForAFurtherEndpointWhereTheOthersSleep(t *testing.T) {
	const lag = 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		one, two := queueing(t, 1), queueing(t, 2)
		one.Policy.Admission.GatewayLag, two.Policy.Admission.GatewayLag = lag, lag
		p := started(t, one)
		p.ObserveSleep(testEndpoint(0).ID, time.Now(), Sleep{Asleep: true})
		c := make(chan answer, 1)
		go func() {
			d, err := p.Pick(context.Background(), &Request{Route: openai.Completions, Body: completion("m", 0, 100, true), Remote: true})
			c <- answer{d, err, time.Now()}
		}()
		waits(t, c, "while all sleep")
		begin := time.Now()
		if err := p.Apply([]Spec{two}); err != nil {
			t.Fatal(err)
		}
		got := <-c
		if got.err != nil {
			t.Fatal(got.err)
		}
		got.d.End(Completed)
		if took := got.at.Sub(begin); got.d.Targets[0].Endpoint.ID != testEndpoint(1).ID || took < lag || took > lag+lookAgain {
			t.Errorf("picked %v after %v", got.d.Targets[0].Endpoint.ID, took)
		}
	})
}
