package httpproxy

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// asked sends a request without a body and returns status and answer.
func (h *house) asked(method, path string, header ...string) (int, string) {
	h.t.Helper()
	r, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, http.NoBody)
	if err != nil {
		h.t.Fatal(err)
	}
	answer := h.do(r, header...)
	return answer.StatusCode, read(h.t, answer)
}

func TestModelsAreListedAsTheEnginesDescribeThem(t *testing.T) {
	started := time.Unix(1_800_000_000, 0)
	h := newHouse(t, Options{Now: func() time.Time { return started }}, spec("127.0.0.1:1", "127.0.0.1:2"))
	list := func() (list request.ModelList) {
		_, text := h.asked(http.MethodGet, "/v1/models")
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	parent := "m"
	entry := func(name, root string, length int, parent *string) request.Model {
		m := request.Model{ID: name, Object: "model", Created: started.Unix(), OwnedBy: "kvasir", Root: root, Parent: parent}
		if length > 0 {
			m.MaxModelLen = &length
		}
		return m
	}
	want := request.ModelList{Object: "list", Data: []request.Model{entry("m", "m", 0, nil), entry("alias", "alias", 0, nil), entry("lora", "lora", 0, &parent)}}
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("before an engine has answered (-want +got):\n%s", diff)
	}
	endpoints := spec("127.0.0.1:1", "127.0.0.1:2").Endpoints
	for i, length := range []int{8192, 4096} { // they are being replaced: requests that fit go to any of them
		h.picker.ObserveModels(endpoints[i].ID, []picker.ListedModel{
			{Name: "alias", Root: "/models/qwen", MaxLen: length}, {Name: "lora", Parent: "m", Root: "/lora"}, {Name: "m", Root: "/models/qwen", MaxLen: length},
		})
	}
	want = request.ModelList{Object: "list", Data: []request.Model{entry("m", "/models/qwen", 4096, nil), entry("alias", "/models/qwen", 4096, nil), entry("lora", "/lora", 0, &parent)}}
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestModelsAreNotShownWhereTheEngineWouldRefuse: the engine has a key, and clients must send it themselves.
func TestModelsAreNotShownWhereTheEngineWouldRefuse(t *testing.T) {
	tenants := keyed(t).Policy.Admission.Tenants
	for name, tc := range map[string]struct {
		pass    bool
		pool    string
		tenants *picker.TenantsSpec
		status  map[string]int // by the Authorization shown
	}{
		"clients send the engine's key": {true, "theirs", nil,
			map[string]int{"Bearer theirs": 200, "bearer theirs": 200, "Bearer wrong": 401, "Basic theirs": 401, "theirs": 401, "Bearer ": 401, "": 401}},
		"the pool's key is added": {false, "theirs", nil, map[string]int{"Bearer wrong": 200, "": 200}},
		"engines without a key":   {true, "", nil, map[string]int{"Bearer wrong": 200, "": 200}},
		"tenants show their own":  {true, "theirs", tenants, map[string]int{"Bearer k-acme": 200, "Bearer theirs": 401}},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec("127.0.0.1:1")
			s.PassClientAuth, s.EngineAPIKey, s.Policy.Admission.Tenants = tc.pass, tc.pool, tc.tenants
			h := newHouse(t, Options{}, s)
			for shown, want := range tc.status {
				for _, path := range []string{"/v1/models", "/v1/models/m", "/v1/models/nobody"} {
					want := want
					if want == 200 && path == "/v1/models/nobody" {
						want = 404
					}
					status, text := h.asked(http.MethodGet, path, "Authorization", shown)
					if status != want || want == 401 && strings.Contains(text, `\"m\"`) {
						t.Errorf("%s with %q: %d %s, want %d", path, shown, status, text, want)
					}
				}
			}
			if status, text := h.asked(http.MethodGet, "/v1/models", "X-Api-Key", "theirs"); tc.status[""] == 401 && status != 401 {
				t.Errorf("by the header that engines do not read: %d %s", status, text)
			}
			h.idle()
		})
	}
}

// TestAnUnknownModelNamesNoOtherToAStranger: only the engine's key shows which models there are.
func TestAnUnknownModelNamesNoOtherToAStranger(t *testing.T) {
	s := spec("127.0.0.1:1")
	s.PassClientAuth, s.EngineAPIKey = true, "theirs"
	h := newHouse(t, Options{}, s)
	for key, named := range map[string]bool{"theirs": true, "wrong": false} {
		r := h.post("/v1/completions", `{"model":"nobody","prompt":"a"}`, "Authorization", "Bearer "+key)
		if text := read(t, r); r.StatusCode != http.StatusNotFound || strings.Contains(text, "Available") != named {
			t.Errorf("key %q: %d %s", key, r.StatusCode, text)
		}
	}
	h.idle()
}

func TestOneModelIsAnsweredByItsName(t *testing.T) {
	s := keyed(t, "127.0.0.1:1")
	slashed := keyed(t, "127.0.0.1:1")
	slashed.Name, slashed.Model, slashed.Aliases, slashed.Adapters = "q", "Qwen/Qwen3-32B", nil, nil
	h := newHouse(t, Options{}, s, slashed)
	for _, tc := range []struct {
		method, path, key string
		status            int
		id, code          string
	}{
		{"GET", "/v1/models/m", "k-acme", 200, "m", ""},
		{"GET", "/v1/models/lora", "k-acme", 200, "lora", ""},
		{"GET", "/v1/models/Qwen/Qwen3-32B", "k-acme", 200, "Qwen/Qwen3-32B", ""},
		{"GET", "/v1/models/Qwen%2FQwen3-32B", "k-acme", 200, "Qwen/Qwen3-32B", ""},
		{"GET", "/v1/models/qwen%2fqwen3-32b", "k-acme", 404, "", "model_not_found"},
		{"GET", "/v1/models/nobody", "k-acme", 404, "", "model_not_found"},
		{"GET", "/v1/models/lora", "k-small", 404, "", "model_not_found"}, // as one that does not exist
		{"GET", "/v1/models/m", "k-wrong", 401, "", "invalid_api_key"},
		{"GET", "/v1/models/nobody", "", 401, "", "invalid_api_key"},
		{"POST", "/v1/models/m", "k-acme", 405, "", "method_not_allowed"},
		{"DELETE", "/v1/models/m", "k-acme", 405, "", "method_not_allowed"},
	} {
		status, text := h.asked(tc.method, tc.path, "Authorization", "Bearer "+tc.key)
		var got struct {
			ID, Object string
			Error      struct{ Code string }
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != tc.status || got.ID != tc.id || got.Error.Code != tc.code {
			t.Errorf("%s %s with key %q: %d %s (%v), want %d, id %q, code %q", tc.method, tc.path, tc.key, status, text, err, tc.status, tc.id, tc.code)
		}
		if tc.status == 200 && got.Object != "model" {
			t.Errorf("%s: object %q", tc.path, got.Object)
		}
	}
	for path, to := range map[string]string{ // engines have no slash there, and SDKs that join paths send one
		"/v1/models/": "/v1/models", "/v1/models/m/?x=1": "/v1/models/m?x=1", "/v1/models/Qwen%2FQwen3-32B/": "/v1/models/Qwen/Qwen3-32B",
		"/v1/models/nobody/": "/v1/models/nobody",
	} {
		r := httptest.NewRequest(http.MethodGet, "http://picker"+path, http.NoBody)
		r.Header.Set("Authorization", "Bearer k-acme")
		w := httptest.NewRecorder()
		h.proxy.ServeHTTP(w, r)
		if w.Code != http.StatusTemporaryRedirect || w.Header().Get("Location") != to {
			t.Errorf("%s: %d to %q, want 307 to %q", path, w.Code, w.Header().Get("Location"), to)
		}
	}
	for key, want := range map[string]string{
		"k-acme":  `The model \"lor\" does not exist. Available: \"m\", \"alias\", \"lora\", \"Qwen/Qwen3-32B\".`,
		"k-small": `The model \"lor\" does not exist. Available: \"m\"."`,
	} {
		if _, text := h.asked(http.MethodGet, "/v1/models/lor", "Authorization", "Bearer "+key); !strings.Contains(text, want) {
			t.Errorf("key %q: %s", key, text)
		}
	}
	if status, text := h.asked(http.MethodHead, "/v1/models/m", "Authorization", "Bearer k-acme"); status != 200 || text != "" {
		t.Errorf("HEAD: %d %q", status, text)
	}
	h.idle()
}

func TestPoolsThatNothingCanServeAreNotListed(t *testing.T) {
	none := func(name string) picker.Spec {
		s := spec()
		s.Name, s.Model, s.Aliases, s.Adapters = name, name, nil, nil
		return s
	}
	empty, woken, unqueued, draining, starting := none("empty"), none("woken"), none("unqueued"), none("draining"), none("starting")
	empty.Policy.Admission.Queue = true
	woken.Policy.Admission.Queue, woken.FromZero, unqueued.FromZero = true, true, true
	draining.Endpoints, starting.Endpoints = spec("127.0.0.1:1").Endpoints, spec("127.0.0.1:2").Endpoints
	draining.Endpoints[0].Terminating, starting.Endpoints[0].Ready = true, false
	h := newHouse(t, Options{}, empty, woken, unqueued, draining, starting)
	for name, want := range map[string]int{"empty": 404, "woken": 200, "unqueued": 404, "draining": 404, "starting": 200} {
		if status, text := h.asked(http.MethodGet, "/v1/models/"+name); status != want {
			t.Errorf("%s: %d %s, want %d", name, status, text, want)
		}
	}
	var list request.ModelList
	if _, text := h.asked(http.MethodGet, "/v1/models"); json.Unmarshal([]byte(text), &list) != nil || len(list.Data) != 2 {
		t.Errorf("listed %s", text)
	}
}

func TestARequestWithoutAModelGoesToTheOnlyOne(t *testing.T) {
	var body []byte
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		_, _ = io.WriteString(w, "{}")
	})
	other := keyed(t, address)
	other.Name, other.Model, other.Aliases, other.Adapters = "other", "other", nil, []string{"tuned"}
	small := other.Policy.Admission.Tenants.Classes["some"]
	const nameless = `{"prompt":"x","max_tokens":1}`
	gone := spec()
	gone.Name, gone.Model, gone.Aliases, gone.Adapters = "gone", "gone", nil, nil
	for name, tc := range map[string]struct {
		specs  []picker.Spec
		small  []string // models of the tenant small
		status int
	}{
		"one pool":                          {[]picker.Spec{spec(address)}, nil, 200},
		"two pools":                         {[]picker.Spec{keyed(t, address), other}, []string{"*"}, 400},
		"two pools, one is the tenant's":    {[]picker.Spec{keyed(t, address), other}, []string{"other"}, 200},
		"a pool, and another's adapter":     {[]picker.Spec{keyed(t, address), other}, []string{"m", "tuned"}, 400},
		"only an adapter is the tenant's":   {[]picker.Spec{other}, []string{"tuned"}, 400}, // the engine would take its base model
		"nothing is the tenant's":           {[]picker.Spec{other}, []string{"x"}, 400},
		"a pool, and one without endpoints": {[]picker.Spec{spec(address), gone}, nil, 400},
		"no pools":                          {nil, nil, 400},
	} {
		t.Run(name, func(t *testing.T) {
			small.Models, body = tc.small, nil
			for i := range tc.specs {
				if tenants := tc.specs[i].Policy.Admission.Tenants; tenants != nil {
					tenants.Classes["some"] = small
				}
			}
			h := newHouse(t, Options{}, tc.specs...)
			for _, text := range []string{nameless, strings.Replace(nameless, "{", `{"model":null,`, 1)} {
				r := h.post("/v1/completions", text, "Authorization", "Bearer k-small")
				if answer := read(t, r); r.StatusCode != tc.status || tc.status == 200 && string(body) != text {
					t.Errorf("%d %s, the engine has got %q, want status %d and %q", r.StatusCode, answer, body, tc.status, text)
				}
			}
			h.idle()
		})
	}
}
