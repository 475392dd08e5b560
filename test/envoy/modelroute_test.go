package envoy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// TestRoutesOfModelsHoldBehindGateways: two pools whose engines know one name each, behind one address of a gateway. Requests for the
// route's name are served by the backend, under its name, and by the fallback while the backend has no endpoint.
func TestRoutesOfModelsHoldBehindGateways(t *testing.T) {
	if *vllm != "" {
		t.Skip("the real engine has one name")
	}
	for _, g := range gateways {
		t.Run(g.name, func(t *testing.T) {
			var all []*engine
			var specs []picker.Spec
			for i, model := range []string{"first", "second-with-a-longer-name"} {
				all = append(all, engines(t, 1, func(c *vllmsim.Config) { c.ServedModelNames = []string{model} })...)
				s := pool(all[i].address())
				s.Name, s.Model, s.Endpoints[0].ID.Pod = model, model, fmt.Sprint("uid-", i)
				specs = append(specs, s)
			}
			route := modelroute.Route{Namespace: "default", Name: "chat", Models: []string{"chat"}, Rules: []modelroute.Rule{{
				Backends:  []modelroute.Backend{{Pool: "default/first", Weight: 1}},
				Fallbacks: []modelroute.Backend{{Pool: "default/second-with-a-longer-name"}},
				On:        modelroute.Of(modelroute.Cold, modelroute.Down), Within: time.Minute,
			}}}
			r := startReplica(t, specs[0], settings{})
			if err := r.picker.Apply(specs, route); err != nil {
				t.Fatal(err)
			}
			p := start(t, []string{r.address}, addresses(all), g)
			client := p.client(t, g, http11)
			ask := func(by int) {
				t.Helper()
				for _, stream := range []bool{false, true} {
					q := newRequest(stream)
					q.model, q.pad = "chat", 100_000
					a := ask(t, client, q)
					if !strings.Contains(a.body, `"model":"`+specs[by].Model+`"`) || servedBy(all, q.id()) != all[by].address() {
						t.Errorf("stream %v: served by %s: %.300s", stream, servedBy(all, q.id()), a.body)
					}
					if a.usage.Prompt != q.tokens {
						t.Errorf("stream %v: %d tokens, want %d", stream, a.usage.Prompt, q.tokens)
					}
				}
			}
			ask(0)
			specs[0].Endpoints[0].Ready, specs[0].Endpoints[0].Serving = false, false
			if err := r.picker.Apply(specs, route); err != nil {
				t.Fatal(err)
			}
			ask(1)
			r.idle(t)
		})
	}
}
