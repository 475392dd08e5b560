package picker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/openai"
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
					if err := p.Apply([]Spec{served}); err != nil { // another change begins no lag anew
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

// A pool that has an endpoint already has one that gateways know, and so has every pool when the picker starts.
func TestFurtherEndpointsArePickedForGatewaysAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := queueing(t, 1)
		one.Policy.Admission.GatewayLag = time.Minute
		p := started(t, one)
		two := queueing(t, 2)
		two.Policy.Admission.GatewayLag = time.Minute
		for _, spec := range []Spec{one, two, one} {
			if err := p.Apply([]Spec{spec}); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			d, err := p.Pick(t.Context(), &Request{Route: openai.Completions, Body: completion("m", 0, 100, true), Remote: true})
			if err != nil {
				t.Fatal(err)
			}
			d.End(Completed)
			if took := time.Since(begin); took != 0 {
				t.Errorf("%d endpoints: waited for %v", len(spec.Endpoints), took)
			}
		}
	})
}
