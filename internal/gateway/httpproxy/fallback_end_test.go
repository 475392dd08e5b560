package httpproxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// ofAcme is named with tenants, who can have one request under way.
func ofAcme(t *testing.T, name string, addresses ...string) picker.Spec {
	s := named(name, addresses...)
	s.Policy.Admission.Tenants = keyed(t).Policy.Admission.Tenants
	all := s.Policy.Admission.Tenants.Classes["all"]
	all.Name, all.MaxConcurrent = "all in "+name, 1
	return s
}

// waiting makes requests wait in the picker while the pool's endpoint is not ready.
func waiting(s picker.Spec) picker.Spec {
	a := &s.Policy.Admission
	a.Queue, a.Limits.Hold, a.Limits.TTL, a.Limits.Requests, a.Limits.Bytes = true, patience, patience, 100, 1<<20
	s.Endpoints[0].Ready, s.Endpoints[0].Serving = false, false
	return s
}

// failing is an engine that answers with a status.
func failing(t *testing.T, status int) string {
	return engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
	})
}

// even waits until as many picks have ended as were observed, and fails for another number of them.
func (h *house) even(want int) {
	h.t.Helper()
	ended := 0
	eventually(h.t, "all picks have ended", func() bool {
		ended = h.seen.count(func(r *recorder) (n int) {
			for _, of := range r.ended {
				n += of
			}
			return n
		})
		return ended >= want
	})
	if picked := h.seen.count(func(r *recorder) int { return r.picked }); picked != want || ended != want {
		h.t.Errorf("%d picks were observed and %d ends, want %d", picked, ended, want)
	}
}

// TestARequestThatFallsBackHasOneRecord, of the last endpoint that has had it, and of what its tenant is charged in all pools.
func TestARequestThatFallsBackHasOneRecord(t *testing.T) {
	sent := usagelog.Record{Entrance: "proxy", Namespace: "default", Pool: "first", Tenant: "acme", Class: "all in first", Model: "chat",
		ServedModel: "first", Route: "/v1/completions", Endpoint: "pod-0/0", Outcome: "failed", Status: 503, PromptTokens: 2,
		PromptSource: "picker", CompletionSource: "estimate", ChargedTokens: 2}
	var body atomic.Value
	for name, tc := range map[string]struct {
		second picker.Spec
		leaves bool
		picks  int
		change func(*usagelog.Record)
	}{
		"served": {second: ofAcme(t, "second", serving(t, &body)), picks: 2, change: func(r *usagelog.Record) {
			r.Pool, r.Class, r.ServedModel, r.Outcome, r.Status = "second", "all in second", "second", "completed", 200
			r.ChargedTokens = 2 + 2 + int64(len(completed)/4) // no count of the engine
		}},
		"refused": {second: ofAcme(t, "second"), picks: 1, change: func(*usagelog.Record) {}},
		"of a client that leaves": {second: waiting(ofAcme(t, "second", nobodyAt(t))), leaves: true, picks: 1, change: func(r *usagelog.Record) {
			r.Outcome, r.Status = "client_gone", 0
		}},
	} {
		t.Run(name, func(t *testing.T) {
			book := new(ledger)
			specs := []picker.Spec{ofAcme(t, "first", failing(t, 500)), tc.second}
			h := newHouse(t, Options{Usage: usagelog.New(book)}, specs...)
			route := fallingBack("first", "second")
			route.Rules[0].On = modelroute.Of(modelroute.Down, modelroute.Cold)
			h.apply(specs, route)
			want := sent
			tc.change(&want)
			for i := range 2 { // the second one finds the tenant's place free
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/completions",
					strings.NewReader(`{"model":"chat","prompt":[1,2]}`))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer k-acme")
				if tc.leaves {
					go func() {
						eventually(t, "the request waits", func() bool { return h.picker.Stats()[1].Admission.Waiting == 1 })
						leave()
					}()
				}
				if answer, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				} else if !tc.leaves {
					t.Fatal(err)
				}
				h.idle()
				got := book.next(t, i)
				ignored := cmpopts.IgnoreFields(usagelog.Record{}, "Request", "Time", "Duration")
				if diff := cmp.Diff(want, got, ignored); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				h.even((i + 1) * tc.picks)
			}
			if book.len() != 2 {
				t.Errorf("%d records of two requests", book.len())
			}
		})
	}
}

// TestAPickThatFallsBackEndsTheDecisionBefore: nothing stays booked in the pool that the request has left.
func TestAPickThatFallsBackEndsTheDecisionBefore(t *testing.T) {
	for name, goes := range map[string]bool{"because its time to wait is over": false, "because no endpoint is ready any more": true} {
		t.Run(name, func(t *testing.T) {
			var h *house
			var body atomic.Value
			route := fallingBack("first", "second")
			second := ofAcme(t, "second", serving(t, &body))
			var first picker.Spec
			first = waiting(ofAcme(t, "first", engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if goes {
					gone := waiting(first)
					gone.Endpoints = append(gone.Endpoints[:0:0], gone.Endpoints...)
					gone.Endpoints[0].Ready, gone.Endpoints[0].Serving = false, false
					h.apply([]picker.Spec{gone, second}, route)
				}
				w.WriteHeader(http.StatusTooManyRequests)
			})))
			first.Endpoints[0].Ready, first.Endpoints[0].Serving = true, true
			first.Policy.RetryServerError = true
			if !goes {
				route.Rules[0].Within = 500 * time.Millisecond // the engine has refused it by then, and is not asked again
			}
			h = newHouse(t, Options{}, first, second)
			h.apply([]picker.Spec{first, second}, route)
			if answer := h.post("/v1/completions", `{"model":"chat","prompt":[1,2]}`, "Authorization", "Bearer k-acme"); answer.StatusCode != 200 {
				t.Fatalf("status %d: %s", answer.StatusCode, read(t, answer))
			}
			if got := body.Load(); got != `{"model":"second","prompt":[1,2]}` {
				t.Errorf("the second pool got %s", got)
			}
			h.even(2)
			if got := h.picker.Stats()[0].Outcomes; got[picker.Failed] != 1 || got[picker.ClientGone] != 0 {
				t.Errorf("outcomes %v in the first pool", got)
			}
			h.idle()
		})
	}
}

// TestAFallbackInTheSamePool under another of its names is a pick of its own.
func TestAFallbackInTheSamePool(t *testing.T) {
	var served atomic.Int64
	first := named("first", engine(t, func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, completed)
	}))
	first.Adapters = []string{"lora"}
	h := newHouse(t, Options{}, first)
	route := fallingBack("first")
	route.Rules[0].Fallbacks = []modelroute.Backend{{Pool: "default/first", Model: "lora"}}
	h.apply([]picker.Spec{first}, route)
	if answer := h.post("/v1/completions", `{"model":"chat","prompt":[1,2]}`); answer.StatusCode != http.StatusOK {
		t.Errorf("status %d", answer.StatusCode)
	}
	h.even(2)
	h.idle()
}

// TestAFallbackGetsNoLegOfAnotherPool: it has none of the blocks.
func TestAFallbackGetsNoLegOfAnotherPool(t *testing.T) {
	p, d, other := newParty(t, "p"), newParty(t, "d"), newParty(t, "other")
	first := named("first", p.address, d.address)
	first.Endpoints[0].Role, first.Endpoints[1].Role = endpoint.Prefill, endpoint.Decode
	first.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64}
	second := named("second", other.address)
	route := fallingBack("first", "second")
	h := newHouse(t, Options{}, first, second)
	h.apply([]picker.Spec{first, second}, route)
	p.does(func(w http.ResponseWriter, _ *http.Request) {
		gone := first
		gone.Endpoints = append(gone.Endpoints[:0:0], first.Endpoints...)
		gone.Endpoints[1].Ready, gone.Endpoints[1].Serving = false, false
		h.apply([]picker.Spec{gone, second}, route)
		answerJSON(w, 200, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":1},`+
			`"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_host":"p"}}`)
	})
	body := strings.Replace(prompted(`,"max_tokens":50`), `"m"`, `"chat"`, 1)
	if answer := h.post("/v1/completions", body); answer.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", answer.StatusCode, read(t, answer))
	}
	if len(p.requests()) != 1 {
		t.Fatalf("%d legs in the first pool", len(p.requests()))
	}
	if got := other.latest(); got["model"] != "second" || got["kv_transfer_params"] != nil {
		t.Errorf("the second pool got model %v and parameters %v", got["model"], got["kv_transfer_params"])
	}
	h.even(2)
	h.idle()
}

// TestAClientThatWaitsForAFallbackGetsComments, though the pool before has let it wait for nothing.
func TestAClientThatWaitsForAFallbackGetsComments(t *testing.T) {
	second := waiting(named("second", nobodyAt(t)))
	second.Policy.Comments = 5 * time.Millisecond
	specs := []picker.Spec{waiting(named("first", nobodyAt(t))), second}
	specs[0].Endpoints = nil
	h := newHouse(t, Options{}, specs...)
	route := fallingBack("first", "second")
	route.Rules[0].On = modelroute.Of(modelroute.Cold)
	h.apply(specs, route)
	ctx, cancel := context.WithTimeout(t.Context(), patience/4)
	defer cancel()
	body := strings.NewReader(`{"model":"chat","prompt":[1],"stream":true}`)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	twoComments(t, h.do(r))
}
