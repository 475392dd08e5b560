package extproc

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/usagelog"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// ledger keeps records of use.
type ledger struct {
	mu  sync.Mutex
	all []*usagelog.Record
}

// Write implements usagelog.Sink.
func (l *ledger) Write(r *usagelog.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r)
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// TestARequestOfAGatewayHasOneRecord: with what the gateway shows of it.
func TestARequestOfAGatewayHasOneRecord(t *testing.T) {
	s := keyed(t, engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}`)
	}))
	s.Policy.Admission.Tenants.Classes["some"].Name = "some"
	book := new(ledger)
	h := newHouse(t, Options{Usage: usagelog.New(book)}, ServeOptions{}, s)
	shown := usagelog.Record{Entrance: "gateway", Namespace: "default", Pool: "pool", Tenant: "small", Class: "some", Model: "m", ServedModel: "m",
		Route: "/v1/completions", Endpoint: "pod-0/0", Outcome: "completed", Status: 200, PromptTokens: 7, PromptSource: "engine",
		CompletionTokens: 3, CompletionSource: "engine", ChargedTokens: 5}
	refused := usagelog.Record{Entrance: "gateway", Namespace: "default", Pool: "pool", Tenant: "small", Class: "some", Model: "lora",
		Route: "/v1/completions", Outcome: "refused", Reason: "tenant", Status: 403}
	unknown := usagelog.Record{Entrance: "gateway", Tenant: "small", Route: "/v1/completions", Outcome: "refused", Reason: "model", Status: 404}
	for name, tc := range map[string]struct {
		options envoytest.Options
		body    string
		key     string
		want    *usagelog.Record
	}{
		"shown":                         {envoytest.Options{}, `{"model":"m","prompt":[1,2]}`, "k-small", &shown},
		"kept by the gateway":           {envoytest.Options{Request: envoytest.WithMode(filter.ProcessingMode_BUFFERED)}, `{"model":"m","prompt":[1,2]}`, "k-small", &shown},
		"a model it is not allowed":     {envoytest.Options{}, `{"model":"lora","prompt":[1,2]}`, "k-small", &refused},
		"a model that does not exist":   {envoytest.Options{}, `{"model":"zanzibar","prompt":[1,2]}`, "k-small", &unknown},
		"of a client that is no tenant": {envoytest.Options{}, `{"model":"m","prompt":[1,2]}`, "zanzibar", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := book.len()
			g := h.envoy(tc.options)
			read(t, g.post("/v1/completions", tc.body, "Authorization", "Bearer "+tc.key, "Content-Type", "application/json", "X-Request-Id", "zanzi bar"))
			g.close()
			h.idle()
			if tc.want == nil {
				if book.len() != n {
					t.Errorf("%d records of a stranger", book.len()-n)
				}
				return
			}
			eventually(t, "a record", func() bool { return book.len() > n })
			got := *book.all[n]
			if diff := cmp.Diff(*tc.want, got, cmpopts.IgnoreFields(usagelog.Record{}, "Request", "Time", "Duration")); diff != "" || book.len() != n+1 {
				t.Errorf("%d records (-want +got):\n%s", book.len()-n, diff)
			}
			if text, err := json.Marshal(got); err != nil || strings.Contains(string(text), "zanzi") || len(got.Request) != 32 || got.Duration <= 0 {
				t.Errorf("%v: %s", err, text)
			}
		})
	}
}
