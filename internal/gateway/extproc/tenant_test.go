package extproc

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tenant"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// keyed is a pool of tenants: acme has the key k-acme and can use all models, small has k-small and can use m alone.
func keyed(t *testing.T, addresses ...string) picker.Spec {
	t.Helper()
	var entries []tenant.Entry
	for name, class := range map[string]string{"acme": "all", "small": "some"} {
		sum := sha256.Sum256([]byte("k-" + name))
		e, err := tenant.Parse(name, []byte(`{"class":"`+class+`","sha256":["`+hex.EncodeToString(sum[:])+`"]}`))
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	known, problems := tenant.NewDirectory(entries)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s := spec(addresses...)
	s.Policy.Admission.Tenants = &picker.TenantsSpec{Known: known, Reject: true, Default: &tenant.Class{Weight: 1}, Classes: map[string]*tenant.Class{
		"all": {Weight: 1}, "some": {Weight: 1, Models: []string{"m"}},
	}}
	return s
}

// TestTenantsAreHeldToTheirLimitsOnEveryRoute: each request of a gateway has a tenant, whatever its path and method, and
// where the model cannot be read, tenants that are allowed to use only some models are refused.
func TestTenantsAreHeldToTheirLimitsOnEveryRoute(t *testing.T) {
	var served atomic.Int64
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		if r.Header.Get("Authorization") != "" || r.Header.Get("X-Api-Key") != "" {
			t.Errorf("%s: a tenant's key has come to the engine", r.URL.Path)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	h := newHouse(t, Options{}, ServeOptions{}, s)
	g := h.envoy(envoytest.Options{})
	chat := func(model string) string {
		return `{"model":"` + model + `","messages":[{"role":"user","content":"hi"}],"max_tokens":1}`
	}
	type want struct{ acme, small int }
	for _, tc := range []struct {
		method, path, body string
		rewrite            string
		want               want
	}{
		{"POST", "/v1/chat/completions", chat("m"), "", want{200, 200}},
		{"POST", "/v1/chat/completions", chat("lora"), "", want{200, 403}},
		{"POST", "/v1/chat/completions", chat("m"), "lora", want{200, 403}},
		{"POST", "/v1/chat/completions", chat("none"), "", want{404, 404}},
		{"POST", "/v1/chat/completions", "{", "", want{400, 400}},
		{"POST", "/v1/messages/count_tokens", chat("lora"), "", want{200, 403}},
		{"POST", "/v1/rerank", `{"model":"lora","query":"q"}`, "", want{200, 403}},
		{"POST", "/v1/rerank", `{"model":"m","query":"q"}`, "", want{200, 200}},
		{"POST", "/v1/audio/transcriptions", "--form", "", want{200, 403}},
		{"GET", "/v1/models", "", "", want{200, 403}}, // an engine's own list, with all models
		{"GET", "/anything", "", "", want{200, 403}},
		{"DELETE", "/anything", "", "", want{200, 403}},
		{"OPTIONS", "/v1/chat/completions", "", "", want{200, 403}},
	} {
		for shown, status := range map[string]int{
			"Authorization=Bearer ": 401, "Authorization=Bearer k-wrong": 401, "X-Api-Key=k-wrong": 401,
			"Authorization=Bearer k-acme": tc.want.acme, "X-Api-Key=k-acme": tc.want.acme, "X-Api-Key=k-small": tc.want.small,
		} {
			name, key, _ := strings.Cut(shown, "=")
			before := served.Load()
			r, err := http.NewRequestWithContext(t.Context(), tc.method, g.url+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			if tc.body == "" {
				r.Body, r.ContentLength = http.NoBody, 0
			}
			header := []string{name, key, "Content-Type", "application/json"}
			if tc.rewrite != "" {
				header = append(header, "X-Gateway-Model-Name-Rewrite", tc.rewrite)
			}
			answer := g.do(r, header...)
			text, _ := io.ReadAll(answer.Body)
			if answer.StatusCode != status {
				t.Errorf("%s %s %.40s with key %q: status %d, want %d: %s", tc.method, tc.path, tc.body, key, answer.StatusCode, status, text)
			}
			if status != 200 && served.Load() != before {
				t.Errorf("%s %s: a request that is refused was served", tc.method, tc.path)
			}
		}
	}
	h.idle()
}

// TestAStrangersBodyIsNotHeld: a client without a key is refused by the header, before any of the body.
func TestAStrangersBodyIsNotHeld(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{}, keyed(t, "127.0.0.1:1"))
	s := h.script()
	s.send(requestHead(false, post...))
	if r := s.receive().GetImmediateResponse(); r.GetStatus().GetCode() != 401 {
		t.Errorf("%v", r)
	}
	s.cancel()
	h.idle()
}

// TestAnswersThatAreChargedForAreNotCompressed: the bytes of a compressed answer say little about its tokens.
func TestAnswersThatAreChargedForAreNotCompressed(t *testing.T) {
	got := make(chan http.Header, 1)
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Clone()
		_, _ = io.WriteString(w, "{}")
	}))
	s.Policy.Admission.Tenants.Classes["some"].TokensPerMinute = 1000
	g := newHouse(t, Options{}, ServeOptions{}, s).envoy(envoytest.Options{})
	for key, want := range map[string]bool{"small": false, "acme": true} {
		_ = read(t, g.post("/v1/completions", completion, "Authorization", "Bearer k-"+key, "Accept-Encoding", "br"))
		if coding := await(t, got).Get("Accept-Encoding"); (coding == "br") != want {
			t.Errorf("%s: the engine is asked for the coding %q", key, coding)
		}
	}
}

// TestATenantLeavesRoomForOthersOfItsGateway: a gateway sends the requests of all tenants over a few connections. One tenant's requests that
// are under way have as much as it can have, and another's is served.
func TestATenantLeavesRoomForOthersOfItsGateway(t *testing.T) {
	room := budget.New(16<<20, time.Now)
	h := newHouse(t, Options{Budget: room}, ServeOptions{}, keyed(t, "127.0.0.1:1"))
	c, err := grpc.NewClient("passthrough:///"+h.address, plain)
	if err != nil {
		t.Fatal(err)
	}
	of := func(key string) []string { return append([]string{"authorization", "Bearer " + key}, post...) }
	piece := requestPiece(strings.Repeat(" ", 60<<10), false)
	for range 200 {
		s := h.scriptOn(c)
		for _, m := range []*pb.ProcessingRequest{requestHead(false, of("k-acme")...), piece, piece} {
			_ = s.stream.Send(m) // some are refused
		}
	}
	eventually(t, "some are refused, or end because they are slow", func() bool {
		s := room.Stats()
		return s.Refused[budget.Streams]+s.Shed[budget.Streams] > 0
	})
	for range 8 {
		s := h.scriptOn(c)
		s.send(requestHead(false, of("k-small")...), requestPiece(`{"model":"m","prompt":"hi"}`, true))
		if r := s.receive(); r.GetImmediateResponse() != nil || destinationOf(r) == "" {
			t.Fatalf("the other tenant is refused: %v", r)
		}
		s.cancel()
	}
	_ = c.Close()
	h.idle()
}
