package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/test/kube"
)

// TestAThousandPoolsFitIntoOnePicker: 20 of them have engines. Each of these answers, /v1/models lists them, and the
// process keeps within half of the 2 GiB that docs/sizing.md plans for it.
func TestAThousandPoolsFitIntoOnePicker(t *testing.T) {
	const pools, warm = 1000, 20
	const most = 1 << 30 // bytes
	f := newFleetWith(t, 0, vllmsim.Config{}, "LeastLoad", func(f *fleet) {
		for _, name := range []string{"pool.yaml", "policy.yaml"} {
			if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		var text strings.Builder
		for i := range pools {
			fmt.Fprintf(&text, "---\napiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: p%[1]d}\n"+
				"spec: {model: {name: m%[1]d}, selector: {matchLabels: {app: p%[1]d}}}\n", i)
		}
		f.write("pools.yaml", text.String())
		for i := range warm {
			config := f.config
			config.ServedModelNames = []string{fmt.Sprintf("m%d", i)}
			e := f.startEngine(config)
			f.engines = append(f.engines, e)
			f.write(fmt.Sprintf("slice-%d.yaml", i), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: p%[1]d, labels: {kvasir.dev/pool: p%[1]d}}
addressType: IPv4
ports: [{name: http, port: %[2]s}, {name: kv-events, port: %[3]s}, {name: kv-replay, port: %[4]s}]
endpoints:
- {addresses: [127.0.0.1], targetRef: {kind: Pod, name: p%[1]d}}
`, i, port(t, e.Addr()), port(t, e.EventsAddr()), port(t, e.ReplayAddr())))
		}
	})
	ask := func(i int) answer {
		body := completion(tokens(i, 64), 4)
		body["model"] = fmt.Sprintf("m%d", i)
		return f.do("/v1/completions", body)
	}
	for i := range warm {
		if a := ask(i); a.status != http.StatusOK {
			t.Errorf("pool %d answers %d: %s", i, a.status, a.body)
		}
	}
	if a := ask(pools); a.status != http.StatusNotFound {
		t.Errorf("a model that does not exist is answered with %d: %s", a.status, a.body)
	}
	if status, models := f.get(f.proxy + "/v1/models"); status != http.StatusOK || strings.Count(models, `"id"`) != warm {
		t.Errorf("the list of models, with status %d, is not that of %d warm pools: %s", status, warm, models)
	}
	before, err := kube.Usage(f.picker.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if status, _ := f.get(f.metrics + "/status"); status != http.StatusOK {
		t.Errorf("the status of all pools is answered with %d", status)
	}
	if status, _ := f.get(f.metrics + "/metrics"); status != http.StatusOK {
		t.Errorf("the metrics of all pools are answered with %d", status)
	}
	took := time.Since(began)
	used, err := kube.Usage(f.picker.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pools: %.0f MiB resident, %.0f MiB at most; status and metrics took %v and %v of processor time",
		pools, float64(before.Memory)/(1<<20), float64(used.Peak)/(1<<20), took, used.CPU-before.CPU)
	if used.Peak > most {
		t.Errorf("%d MiB resident at most, want %d", used.Peak>>20, most>>20)
	}
}
