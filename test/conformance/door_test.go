package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// door is what gateways see of the fleet of docs/pickers.md: the engines of three pools, one each, and two pickers.
var door = pool{"default-fleet", chat.picker, []string{"10.9.1.1", "10.9.1.2", "10.9.1.3"}, []string{chat.picker, secondPicker}}

// doorModels are the pools of the engines, in their order, and their models.
var doorModels = []string{"llama", "llama-next", "small"}

// startDoor starts the engines, each with a model of its own, the pickers, and Istio over the page's Gateway and what the operator makes of the
// fleet.
func startDoor(t *testing.T) (engines, pickers []*process) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"route.yaml": `apiVersion: kvasir.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat, namespace: llm}
spec:
  models: [chat]
  rules:
  - matches: [{headers: [{name: x-canary, value: "true"}]}]
    backends: [{pool: llama-next}]
  - backends: [{pool: llama, weight: 70}, {pool: llama-next, weight: 30}]
`}
	for i, name := range doorModels {
		pod := door.engines[i]
		engines = append(engines, execute(t, bin(t, "vllmsim"), "--host", pod, "--port", "8000", "--served-model-name", name, "--speed-up", "100"))
		until(t, "the engine serves", func() bool { return get("http://"+pod+":8000/health") == http.StatusOK })
		files[name+".yaml"] = fmt.Sprintf("apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: %[1]s, namespace: llm}\n"+
			"spec: {selector: {matchLabels: {app: %[1]s}}, model: {name: %[1]s}}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
			"metadata: {name: %[1]s, namespace: llm, labels: {kvasir.dev/pool: %[1]s}}\naddressType: IPv4\nports: [{name: http, port: 8000}]\n"+
			"endpoints: [{addresses: [%[2]s], targetRef: {kind: Pod, name: %[1]s-0, namespace: llm, uid: %[1]s-0}}]\n", name, pod)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range door.replicas {
		pickers = append(pickers, execute(t, bin(t, "picker"), "--standalone", dir, "--ext-proc-address", at+":9002", "--health-address", at+":9003",
			"--metrics-address", at+":9090", "--proxy-address", at+":8080"))
		until(t, "the picker is ready", func() bool { return get("http://"+at+":9003/readyz") == http.StatusOK })
	}
	objects := slices.DeleteFunc(page(t, nil), func(o object) bool { return o["kind"] != "Gateway" })
	fleet := slices.DeleteFunc(objectsOf(t, "pickers.md", "default"), func(o object) bool { return at(o, "metadata")["name"] != door.name })
	if len(fleet) != 4 {
		t.Fatalf("the operator makes %d objects of the fleet for Istio, want its Service, InferencePool, HTTPRoute and DestinationRule", len(fleet))
	}
	startIstioWith(t, []pool{door}, append(objects, fleet...), func(object) {})
	return engines, pickers
}

// askModel sends a completion, and returns the status, the answer and the model that has answered.
func askModel(t *testing.T, model string, header ...string) (a answer, by string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gatewayPod+":80/v1/completions",
		strings.NewReader(fmt.Sprintf(`{"model":%q,"prompt":[1,2,3,4],"max_tokens":4}`, model)))
	if err != nil {
		t.Fatal(err)
	}
	return do(t, q, header...)
}

func do(t *testing.T, q *http.Request, header ...string) (a answer, by string) {
	t.Helper()
	q.Host = "llm.example.com"
	q.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Do(q)
	if err != nil {
		return answer{body: err.Error()}, ""
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	var said struct{ Model string }
	_ = json.Unmarshal(text, &said)
	return answer{r.StatusCode, string(text)}, said.Model
}

// One InferencePool and one HTTPRoute of the operator serve all models of a fleet behind Istio: by the model, a canary whose sessions stay, and
// the list of the models.
func TestAFleetIsOneDoorBehindIstio(t *testing.T) {
	startDoor(t)
	for _, name := range doorModels {
		if a, by := askModel(t, name); a.status != http.StatusOK || by != name {
			t.Errorf("model %s: %+v", name, a)
		}
	}
	if a, by := askModel(t, "chat", "X-Canary", "true"); a.status != http.StatusOK || by != "llama-next" {
		t.Errorf("a header that asks for the canary: %+v", a)
	}
	if a, _ := askModel(t, "unknown"); a.status != http.StatusNotFound {
		t.Errorf("an unknown model: %+v", a)
	}
	sides, counts := map[int]string{}, map[string]int{}
	for range 2 {
		for i := range 40 {
			a, by := askModel(t, "chat", "X-Session-Id", fmt.Sprint("session-", i))
			if a.status != http.StatusOK || sides[i] != "" && sides[i] != by {
				t.Errorf("session %d was at %q: %+v", i, sides[i], a)
			}
			sides[i] = by
			counts[by]++
		}
	}
	if counts["llama"] < 30 || counts["llama-next"] < 6 || counts["small"] > 0 {
		t.Errorf("answers by model: %v", counts)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+gatewayPod+":80/v1/models", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if a, _ := do(t, q); a.status != http.StatusOK || strings.Count(a.body, `"object":"model"`) != 4 || !strings.Contains(a.body, `"id":"chat"`) {
		t.Errorf("the models: %+v", a)
	}
	for _, at := range door.replicas {
		if sum(t, at+":9090", "kvasir_picks_total") == 0 {
			t.Errorf("the picker at %s was not asked", at)
		}
	}
}

// Istio sends a request again whose endpoint refuses the connection, to any endpoint of the InferencePool. The client does not get the answer of
// another pool's engine.
func TestNoOtherPoolAnswersBehindIstio(t *testing.T) {
	engines, _ := startDoor(t)
	if a, by := askModel(t, "small"); a.status != http.StatusOK || by != "small" {
		t.Fatalf("before: %+v", a)
	}
	engines[2].kill()
	a, _ := askModel(t, "small")
	if a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "another pool") {
		t.Errorf("a pool whose engine is dead: %+v", a)
	}
	if a, by := askModel(t, "llama"); a.status != http.StatusOK || by != "llama" {
		t.Errorf("another pool: %+v", a)
	}
}

// With two pickers of the fleet and the operator's DestinationRule, one that is killed costs a few requests at most, as with pickers of a pool.
func TestAFleetsPickerIsKilledBehindIstio(t *testing.T) {
	_, pickers := startDoor(t)
	const requests = 100
	const ejected = 5 * time.Second
	failed, killed := 0, time.Now()
	for i := range 2 * requests {
		if i == requests {
			if failed > 0 {
				t.Fatalf("with two pickers, %d of %d requests failed", failed, requests)
			}
			pickers[0].kill()
			killed = time.Now()
		}
		if a, by := askModel(t, doorModels[i%3]); a.status != http.StatusOK || by != doorModels[i%3] {
			failed++
			t.Logf("request %d after the kill: %+v", i-requests, a)
		}
	}
	took := time.Since(killed)
	t.Logf("%d of %d requests failed in %v after one of two pickers was killed", failed, requests, took)
	if most := 1 + int(took/ejected); failed > most {
		t.Errorf("%d requests failed, want at most %d", failed, most)
	}
}
