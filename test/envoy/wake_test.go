package envoy

import (
	"testing"
	"time"
)

// A gateway learns of a pod that has become ready later than the picker. A request that waits for the first endpoint of a pool
// at zero waits for that, too: otherwise gateways that know the pods refuse it, with "no healthy upstream".
func TestAPoolAtZeroIsWokenBehindAGateway(t *testing.T) {
	const lag = time.Hour
	for _, g := range gateways {
		t.Run(g.name, func(t *testing.T) {
			all := engines(t, 1, nil)
			serves := pool(addresses(all)...)
			serves.Policy.Admission.GatewayLag = lag
			asleep := serves
			asleep.Endpoints = nil
			r := startReplica(t, asleep, settings{})
			p := start(t, []string{r.address}, nil, g)
			answers := make(chan reply, 1)
			client, q := p.client(t, g, http11), newRequest(true)
			go func() { answers <- do(client, q, nil) }()
			until(t, "the request is held", func() bool { return r.stats().Admission.Waiting == 1 })
			r.apply(t, serves)
			discover(t, p.dir, enginesFile, addresses(all))
			if g.destination == override || g.destination == subset {
				until(t, "Envoy knows the engine", func() bool { return p.knows(g, all[0].address()) })
			}
			p.settle(t)
			if s := r.stats().Admission; s.Waiting != 1 {
				t.Errorf("the request has not waited until the gateway knows the engine: %+v", s)
			}
			r.ahead.Add(int64(lag))
			if a := <-answers; !a.whole(true) {
				t.Errorf("the request that was held: %v", a)
			}
			if s := gatewayStats(r.stats()); s.Unfollowed != 0 || s.Ignores {
				t.Errorf("the gateway counts as one that does not follow picks: %+v", s)
			}
		})
	}
}
