package httpproxy

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
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

// next waits for a record behind the first n.
func (l *ledger) next(t *testing.T, n int) usagelog.Record {
	t.Helper()
	eventually(t, "a record", func() bool { return l.len() > n })
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.all[n]
}

// TestEachRequestHasOneRecord: of what it has used and how it has ended, without a word of the client's that the pool does not know.
func TestEachRequestHasOneRecord(t *testing.T) {
	s := keyed(t, nobodyAt(t), engine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case strings.Contains(string(body), "rejected"):
			answerJSON(w, 400, `{"error":{"message":"no"}}`)
		case strings.Contains(string(body), "broken"):
			answerJSON(w, 500, `{"error":{"message":"broken"}}`)
		case strings.Contains(string(body), "left"):
			eventStream(w)
			say(w, token("a"))
			say(w, token("b"))
			<-r.Context().Done()
		case strings.Contains(string(body), `"stream":true`):
			eventStream(w)
			say(w, token("a")+`data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}`+"\n\ndata: [DONE]\n\n")
		default:
			answerJSON(w, 200, `{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}`)
		}
	}))
	s.Policy.Attempts = 3
	s.Policy.Admission.Tenants.Classes["all"].Name, s.Policy.Admission.Tenants.Classes["some"].Name = "all", "some"
	s.Policy.Admission.Tenants.Classes["some"].MaxConcurrent = 1
	book := new(ledger)
	h := newHouse(t, Options{Usage: usagelog.New(book)}, s)
	cached := 0
	sent := usagelog.Record{Entrance: "proxy", Namespace: "default", Pool: "pool", Tenant: "acme", Class: "all", Model: "m", ServedModel: "m",
		Route: "/v1/completions", Endpoint: "pod-1/0", Outcome: "completed", Status: 200, PromptTokens: 7, PromptSource: "engine",
		CompletionTokens: 3, CompletionSource: "engine", ChargedTokens: 5}
	with := func(change func(*usagelog.Record)) usagelog.Record {
		r := sent
		change(&r)
		return r
	}
	refused := func(status int, reason string, change func(*usagelog.Record)) usagelog.Record {
		r := usagelog.Record{Entrance: "proxy", Namespace: "default", Pool: "pool", Tenant: "acme", Class: "all", Route: "/v1/completions",
			Outcome: "refused", Reason: reason, Status: status}
		change(&r)
		return r
	}
	unplaced := func(r *usagelog.Record) { r.Namespace, r.Pool, r.Class = "", "", "" }
	for name, tc := range map[string]struct {
		path, key, body string
		want            usagelog.Record
	}{
		"sent to another endpoint": {"/v1/completions", "k-acme", `{"model":"m","prompt":[1,2]}`, sent},
		"an adapter": {"/v1/completions", "k-acme", `{"model":"lora","prompt":[1,2]}`,
			with(func(r *usagelog.Record) { r.Model, r.Adapter = "lora", "lora" })},
		"an alias, streamed": {"/v1/completions", "k-acme", `{"model":"alias","prompt":[1,2],"stream":true}`, with(func(r *usagelog.Record) {
			r.Model, r.Stream, r.CompletionTokens, r.ChargedTokens, r.CachedTokens = "alias", true, 2, 4, &cached
		})},
		"rejected by the engine": {"/v1/completions", "k-acme", `{"model":"m","prompt":[1,2],"user":"rejected"}`, with(func(r *usagelog.Record) {
			r.Outcome, r.Status, r.PromptTokens, r.PromptSource, r.CompletionTokens, r.CompletionSource, r.ChargedTokens =
				"rejected", 400, 2, "picker", 0, "estimate", 2
		})},
		"failed": {"/v1/completions", "k-acme", `{"model":"m","prompt":[1,2],"user":"broken"}`, with(func(r *usagelog.Record) {
			r.Outcome, r.Status, r.PromptTokens, r.PromptSource, r.CompletionTokens, r.CompletionSource, r.ChargedTokens =
				"failed", 500, 2, "picker", 0, "estimate", 2
		})},
		"a model that the tenant cannot use": {"/v1/completions", "k-small", `{"model":"lora","prompt":[1,2]}`,
			refused(403, "tenant", func(r *usagelog.Record) { r.Tenant, r.Class, r.Model, r.Adapter = "small", "some", "lora", "" })},
		"an unknown model":   {"/v1/completions", "k-acme", `{"model":"zanzibar","prompt":[1,2]}`, refused(404, "model", unplaced)},
		"an unreadable body": {"/v1/completions", "k-acme", `"zanzibar"`, refused(400, "unreadable", unplaced)},
		"an unknown path":    {"/zanzibar", "k-acme", `{}`, refused(404, "path", func(r *usagelog.Record) { unplaced(r); r.Route = "" })},
		"too large":          {"/v1/completions", "k-acme", `{"model":"m","prompt":"` + strings.Repeat("x", 2<<20) + `"}`, refused(413, "too_large", unplaced)},
		"an open path": {"/v1/zanzibar", "k-acme", `{}`, with(func(r *usagelog.Record) {
			r.Model, r.Route, r.PromptTokens, r.PromptSource, r.CompletionTokens, r.CompletionSource, r.ChargedTokens = "", "", 0, "estimate", 0, "estimate", 0
		})},
	} {
		t.Run(name, func(t *testing.T) {
			n := book.len()
			answer := h.post(tc.path, tc.body, "Authorization", "Bearer "+tc.key, "X-Request-Id", "mine", "Content-Type", "application/json")
			read(t, answer)
			h.idle()
			got := book.next(t, n)
			if got.Request != "mine" || got.Time.IsZero() || got.Duration <= 0 || (got.FirstToken > 0) != tc.want.Stream {
				t.Errorf("request %q at %v, first token after %v ms, the end after %v", got.Request, got.Time, got.FirstToken, got.Duration)
			}
			if got.Outcome == "failed" && got.Endpoint == "pod-0/0" { // whichever was tried last
				got.Endpoint = tc.want.Endpoint
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(usagelog.Record{}, "Request", "Time", "Duration", "FirstToken")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if text, err := json.Marshal(got); err != nil || strings.Contains(string(text), "zanzibar") {
				t.Errorf("%v: it has a word of the client: %s", err, text)
			}
			if book.len() != n+1 {
				t.Errorf("%d records", book.len()-n)
			}
		})
	}

	// A client that leaves in the middle is charged for about as much as has arrived.
	n := book.len()
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":[1,2],"stream":true,"user":"left"}`))
	if err != nil {
		t.Fatal(err)
	}
	answer := h.do(r, "Authorization", "Bearer k-acme")
	_, _ = io.ReadFull(answer.Body, make([]byte, 2*len(token("a"))))
	leave()
	if got := book.next(t, n); got.Outcome != "client_gone" || got.CompletionTokens != 2 || got.CompletionSource != "estimate" ||
		got.ChargedTokens != 4 || got.PromptSource != "picker" {
		t.Errorf("a client that has left: %+v", got)
	}

	// A stranger has none, or anyone could fill the disk.
	n = book.len()
	read(t, h.post("/v1/completions", streamed, "Authorization", "Bearer zanzibar"))
	read(t, h.post("/v1/completions", `{"model":"m","prompt":[1]}`, "Authorization", "Bearer k-acme"))
	if got := book.next(t, n); got.Tenant != "acme" || book.len() != n+1 {
		t.Errorf("%d records, the first of %q", book.len()-n, got.Tenant)
	}
}

// TestAHandedOverRequestHasOneRecord: two endpoints have worked for it, and the tokens of the first leg are computed again.
func TestAHandedOverRequestHasOneRecord(t *testing.T) {
	book := new(ledger)
	h, _, _ := withRolesOf(t, Options{Usage: usagelog.New(book)}, func(*picker.Spec) {})
	read(t, h.post("/v1/completions", prompted(`,"max_tokens":50`)))
	if got := h.handoffs(); got["completed"] != 1 {
		t.Fatalf("hand-offs %v", got)
	}
	got := book.next(t, 0)
	if book.len() != 1 || got.Outcome != "completed" || got.PromptTokens != 100 || got.CompletionTokens != 5 || got.Endpoint != "pod-2/0" && got.Endpoint != "pod-3/0" {
		t.Errorf("%d records, the first is %+v", book.len(), got)
	}
}

// TestTwoRequestsOfOneIDAreToldApart: by the id that the engine has.
func TestTwoRequestsOfOneIDAreToldApart(t *testing.T) {
	held, ids := make(chan struct{}), make(chan string, 2)
	book := new(ledger)
	h := newHouse(t, Options{Usage: usagelog.New(book)}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		ids <- r.Header.Get("X-Request-Id")
		<-held
		answerJSON(w, 200, "{}")
	})))
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			r, err := http.NewRequest(http.MethodPost, h.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":[1]}`))
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, h.do(r, "X-Request-Id", "same").Body)
		})
	}
	known := map[string]bool{await(t, "a request", ids): true, await(t, "another", ids): true}
	close(held)
	wait.Wait()
	for i := range 2 {
		r := book.next(t, i)
		if id := r.EngineRequest; r.Request != "same" || id == "same" || !known["same"] || id != "" && !known[id] {
			t.Errorf("request %q is %q at the engine, which knows %v", r.Request, id, known)
		}
	}
	if a, b := book.next(t, 0), book.next(t, 1); a.EngineRequest == b.EngineRequest {
		t.Error("both have the same id at the engine")
	}
}
