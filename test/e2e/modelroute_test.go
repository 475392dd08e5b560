package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// manyModels is a picker with the files of config/samples/many-models, and the engines of each pool by its name.
type manyModels struct {
	*fleet
	pools map[string][]*vllmsim.Engine
	asked atomic.Int32 // each request has a prompt of its own: one on which two engines abort goes to no third
}

const manyModelsPolicy = `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: all}
spec:
  targetRefs: [{name: llama}, {name: llama-next}, {name: small}]
  strategy: {type: LeastLoad}
  decisions: {answerHeaders: Always}
`

// startManyModels starts two engines for each pool. files replace or complete the sample's.
func startManyModels(t *testing.T, files map[string]string) *manyModels {
	t.Helper()
	m := &manyModels{pools: map[string][]*vllmsim.Engine{}}
	m.fleet = newFleetWith(t, 0, vllmsim.Config{}, "LeastLoad", func(f *fleet) {
		m.fleet = f
		for _, name := range []string{"pool.yaml", "policy.yaml"} {
			if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"pools.yaml", "route.yaml"} {
			text, err := os.ReadFile(filepath.Join("..", "..", "config", "samples", "many-models", name))
			if err != nil {
				t.Fatal(err)
			}
			f.write(name, string(text))
		}
		f.write("policy.yaml", manyModelsPolicy)
		for _, pool := range []string{"llama", "llama-next", "small"} {
			for i := range 2 {
				config := f.config
				config.ServedModelNames = []string{pool}
				e := f.startEngine(config)
				m.pools[pool] = append(m.pools[pool], e)
				f.write(fmt.Sprintf("slice-%s-%d.yaml", pool, i), fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-%[2]d, labels: {kvasir.dev/pool: %[1]s}}
addressType: IPv4
ports: [{name: http, port: %[3]s}, {name: kv-events, port: %[4]s}, {name: kv-replay, port: %[5]s}]
endpoints:
- {addresses: [127.0.0.1], targetRef: {kind: Pod, name: %[1]s-%[2]d}}
`, pool, i, port(t, e.Addr()), port(t, e.EventsAddr()), port(t, e.ReplayAddr())))
			}
		}
		for name, text := range files {
			f.write(name, text)
		}
	})
	return m
}

// ask sends a completion, and returns the status, the answer and the pool in its x-kvasir-route, or of its endpoint.
func (m *manyModels) ask(model string, header ...string) (status int, body, pool string) {
	payload, err := json.Marshal(map[string]any{"model": model, "prompt": []int{1, 2, 3, int(m.asked.Add(1))}, "max_tokens": 4})
	if err != nil {
		m.t.Error(err)
	}
	r, err := http.NewRequest(http.MethodPost, m.proxy+"/v1/completions", bytes.NewReader(payload))
	if err != nil {
		m.t.Error(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := m.client.Do(r)
	if err != nil {
		return 0, err.Error(), ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), ""
	}
	if _, pool, _ = strings.Cut(resp.Header.Get("X-Kvasir-Route"), "pool=default/"); pool != "" {
		pool, _, _ = strings.Cut(pool, ";")
	} else if at := strings.LastIndex(resp.Header.Get("X-Kvasir-Endpoint"), "-"); at > 0 {
		pool = resp.Header.Get("X-Kvasir-Endpoint")[:at]
	}
	return resp.StatusCode, string(b), pool
}

// listed are the names of /v1/models.
func (m *manyModels) listed(key string) (names []string) {
	r, err := http.NewRequest(http.MethodGet, m.proxy+"/v1/models", nil)
	if err != nil {
		m.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := m.client.Do(r)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct{ Data []struct{ ID string } }
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		m.t.Fatal(err)
	}
	for _, one := range list.Data {
		names = append(names, one.ID)
	}
	slices.Sort(names)
	return names
}

// TestThreeModelsBehindOneAddress: each by its own name, a canary whose sessions stay also after the picker was started again, and a
// header that asks for it.
func TestThreeModelsBehindOneAddress(t *testing.T) {
	m := startManyModels(t, nil)
	for _, model := range []string{"llama", "llama-next", "small"} {
		if status, body, pool := m.ask(model); status != http.StatusOK || pool != model || !strings.Contains(body, `"model":"`+model+`"`) {
			t.Errorf("model %s: %d %s from %s", model, status, body, pool)
		}
	}
	if got := m.listed(""); !slices.Equal(got, []string{"chat", "llama", "llama-next", "small"}) {
		t.Errorf("models %v", got)
	}
	if status, _, pool := m.ask("chat", "x-canary", "true"); status != http.StatusOK || pool != "llama-next" {
		t.Errorf("a request with the header: %d from %s", status, pool)
	}
	if status, _, _ := m.ask("unknown"); status != http.StatusNotFound {
		t.Errorf("an unknown model: %d", status)
	}
	sides := map[int]string{}
	turn := func() (moved int) {
		counts := map[string]int{}
		for i := range 100 {
			status, body, pool := m.ask("chat", "x-session-id", fmt.Sprint("session-", i))
			if status != http.StatusOK {
				t.Fatalf("session %d: %d %s", i, status, body)
			}
			if sides[i] != "" && sides[i] != pool {
				moved++
			}
			sides[i] = pool
			counts[pool]++
		}
		if counts["llama-next"] < 3 || counts["llama"] < 50 || counts["small"] > 0 {
			t.Errorf("sessions by pool: %v, want about 80 at llama and 20 at llama-next", counts)
		}
		return moved
	}
	turn()
	if moved := turn(); moved != 0 {
		t.Errorf("%d sessions have moved", moved)
	}
	if got := m.metric("kvasir_route_requests_total", `pool="llama-next"`, `route="chat"`); got < 6 {
		t.Errorf("kvasir_route_requests_total of llama-next is %v", got)
	}
	if err := m.picker.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-m.exited
	m.startPicker()
	if moved := turn(); moved != 0 {
		t.Errorf("%d sessions have moved while the picker was started again", moved)
	}
}

// TestAPoolThatIsKilledUnderLoadFailsNoRequest: its sessions are answered by the fallback, before and after the picker has noticed.
func TestAPoolThatIsKilledUnderLoadFailsNoRequest(t *testing.T) {
	m := startManyModels(t, nil)
	var clients sync.WaitGroup
	var stop atomic.Bool
	var answered, fell, failed atomic.Int64
	for i := range 8 {
		clients.Go(func() {
			for n := 0; !stop.Load(); n++ {
				status, body, pool := m.ask("chat", "x-session-id", fmt.Sprint("session-", i, "-", n%5))
				answered.Add(1)
				if pool == "small" {
					fell.Add(1)
				}
				if status != http.StatusOK {
					failed.Add(1)
					t.Errorf("status %d: %s", status, body)
				}
			}
		})
	}
	m.until("requests are served", func() bool { return answered.Load() > 50 })
	if fell.Load() > 0 {
		t.Errorf("%d requests fell back before", fell.Load())
	}
	at := answered.Load()
	for i, e := range m.pools["llama"] {
		m.until("requests are served between the kills", func() bool { return answered.Load() > at+int64(50*i) })
		e.Kill()
	}
	at = answered.Load()
	m.until("requests fall back", func() bool { return fell.Load() > 50 && answered.Load() > at+100 })
	stop.Store(true)
	clients.Wait()
	if n := m.metric("kvasir_route_fallbacks_total", `pool="llama"`, `route="chat"`); n < 1 {
		t.Errorf("kvasir_route_fallbacks_total is %v", n)
	}
	t.Logf("%d requests, %d by the fallback, %d failed", answered.Load(), fell.Load(), failed.Load())
}

// keyHash is how Secrets of tenants have a key.
func keyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// TestTenantsSeeTheirModelsOnly: a route for tenants that are allowed both names.
func TestTenantsSeeTheirModelsOnly(t *testing.T) {
	m := startManyModels(t, map[string]string{
		"policy.yaml": manyModelsPolicy + `  admission:
    tenants:
      identification: APIKey
      unknown: Reject
      secretRefs: [{name: tenants}]
      classes:
      - {name: default}
      - {name: small, models: [small]}
      - {name: route, models: [chat]}
`,
		"tenants.yaml": `apiVersion: v1
kind: Secret
metadata: {name: tenants}
stringData:
  big: '{"class": "default", "sha256": ["` + keyHash("key-big") + `"]}'
  little: '{"class": "small", "sha256": ["` + keyHash("key-little") + `"]}'
  half: '{"class": "route", "sha256": ["` + keyHash("key-half") + `"]}'
`,
	})
	for key, want := range map[string]struct {
		listed []string
		status int // of chat
	}{
		"key-big":    {[]string{"chat", "llama", "llama-next", "small"}, http.StatusOK},
		"key-little": {[]string{"small"}, http.StatusForbidden},
		"key-half":   {nil, http.StatusForbidden},
	} {
		if got := m.listed(key); !slices.Equal(got, want.listed) {
			t.Errorf("%s: models %v, want %v", key, got, want.listed)
		}
		if status, body, _ := m.ask("chat", "Authorization", "Bearer "+key); status != want.status {
			t.Errorf("%s: %d %s, want %d", key, status, body, want.status)
		}
	}
	if status, _, _ := m.ask("chat"); status != http.StatusUnauthorized {
		t.Errorf("without a key: %d", status)
	}
}

// TestARouteThatIsWrongIsShown in the status, with the field, and disturbs no other.
func TestARouteThatIsWrongIsShown(t *testing.T) {
	m := startManyModels(t, nil)
	m.write("other.yaml", `apiVersion: kvasir.dev/v1alpha1
kind: ModelRoute
metadata: {name: other}
spec: {models: [chat], rules: [{backends: [{pool: missing}]}]}
`)
	m.until("the status has the problem", func() bool {
		_, body := m.get(m.metrics + "/status")
		return strings.Contains(body, "spec.models[0]: ") && strings.Contains(body, "a name of ModelRoute default/chat") &&
			strings.Contains(body, "spec.rules[0].backends[0].pool")
	})
	if status, _, _ := m.ask("chat"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}
