package httpproxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// answers are what a stand-in engine does, by name.
var answers = map[string]http.HandlerFunc{
	"ok": func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, "%d bytes", len(body))
	},
	"500": func(w http.ResponseWriter, _ *http.Request) { // answers before it has read the body
		w.Header().Set("X-From", "500")
		w.WriteHeader(500)
		_, _ = io.WriteString(w, "five hundred")
	},
	"503": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("X-From", "503")
		w.WriteHeader(503)
		_, _ = io.WriteString(w, "five hundred and three")
	},
	"501": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(501) },
	"huge": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(502)
		_, _ = io.WriteString(w, strings.Repeat("x", keepError+1))
	},
	"400": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(400)
		_, _ = io.WriteString(w, "four hundred")
	},
	"reset": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	},
	"silent": func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	},
}

func TestFallbacksAreTriedInOrderBeforeTheFirstByte(t *testing.T) {
	// An engine that answers has to do so in this time, with the race detector and on a busy machine.
	const patience = 3 * time.Second
	all := func(p *picker.PolicySpec) { p.RetryFirstByte = true; p.FirstByte = patience }
	none := func(p *picker.PolicySpec) { p.RetryConnect, p.RetryServerError = false, false }
	cases := map[string]struct {
		engines  []string
		policy   func(*picker.PolicySpec)
		status   int
		body     string
		outcome  picker.Outcome
		attempts []int64 // requests by endpoint: those that reached it, and -1 for one where no process listens
		failures []int64
	}{
		"first answers":              {[]string{"ok", "ok"}, nil, 200, "N bytes", picker.Completed, []int64{1, 0}, []int64{0, 0}},
		"no process listens":         {[]string{"dead", "ok"}, nil, 200, "N bytes", picker.Completed, []int64{-1, 1}, []int64{1, 0}},
		"closes without an answer":   {[]string{"reset", "ok"}, nil, 200, "N bytes", picker.Completed, []int64{1, 1}, []int64{1, 0}},
		"server error":               {[]string{"500", "503", "ok"}, nil, 200, "N bytes", picker.Completed, []int64{1, 1, 1}, []int64{1, 1, 0}},
		"a large error is not kept":  {[]string{"huge", "dead"}, nil, 502, `"upstream_failed"`, picker.Failed, []int64{1, -1}, []int64{1, 1}},
		"all are dead":               {[]string{"dead", "dead"}, nil, 502, `"upstream_failed"`, picker.Failed, []int64{-1, -1}, []int64{1, 1}},
		"the last error passes":      {[]string{"503", "500"}, nil, 500, "five hundred", picker.Failed, []int64{1, 1}, []int64{1, 1}},
		"an earlier error passes":    {[]string{"503", "dead"}, nil, 503, "five hundred and three", picker.Failed, []int64{1, -1}, []int64{1, 1}},
		"a large last error passes":  {[]string{"dead", "huge"}, nil, 502, strings.Repeat("x", keepError+1), picker.Failed, []int64{-1, 1}, []int64{1, 1}},
		"the request's fault":        {[]string{"400", "ok"}, nil, 400, "four hundred", picker.Rejected, []int64{1, 0}, []int64{0, 0}},
		"no engine has the feature":  {[]string{"501", "ok"}, nil, 501, "", picker.Failed, []int64{1, 0}, []int64{0, 0}},
		"no more attempts":           {[]string{"500", "500", "503", "ok"}, nil, 503, "five hundred and three", picker.Failed, []int64{1, 1, 1, 0}, []int64{1, 1, 1, 0}},
		"too late":                   {[]string{"silent", "ok"}, all, 200, "N bytes", picker.Completed, []int64{1, 1}, []int64{1, 0}},
		"all too late":               {[]string{"silent", "silent"}, all, 502, `"upstream_timeout"`, picker.Failed, []int64{1, 1}, []int64{1, 1}},
		"connecting not tried again": {[]string{"dead", "ok"}, none, 502, `"upstream_failed"`, picker.Failed, []int64{-1, 0}, []int64{1, 0}},
		"errors not tried again":     {[]string{"500", "ok"}, none, 500, "five hundred", picker.Failed, []int64{1, 0}, []int64{1, 0}},
		"time-outs not tried again": {[]string{"silent", "ok"}, func(p *picker.PolicySpec) { p.FirstByte = patience },
			502, `"upstream_timeout"`, picker.Failed, []int64{1, 0}, []int64{1, 0}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(tc.engines, "dead") { // a parallel test could listen at its port
				t.Parallel()
			}
			reached := make([]atomic.Int64, len(tc.engines))
			var addresses []string
			for i, kind := range tc.engines {
				if kind == "dead" {
					addresses = append(addresses, nobodyAt(t))
					continue
				}
				addresses = append(addresses, engine(t, func(w http.ResponseWriter, r *http.Request) {
					reached[i].Add(1)
					answers[kind](w, r)
				}))
			}
			s := spec(addresses...)
			if tc.policy != nil {
				tc.policy(&s.Policy)
			}
			h := newHouse(t, Options{}, s)
			body := `{"model":"m","prompt":"` + strings.Repeat("x", 300<<10) + `"}`
			r := h.post("/v1/completions", body)
			want := strings.Replace(tc.body, "N", fmt.Sprint(len(body)), 1)
			if got := read(t, r); r.StatusCode != tc.status || !strings.Contains(got, want) || (want == "") != (got == "") {
				t.Errorf("answer %d %.200q, want %d %.200q", r.StatusCode, got, tc.status, want)
			}
			if from := r.Header.Get("X-From"); from != "" && from != fmt.Sprint(tc.status) {
				t.Errorf("the header is from %s", from)
			}
			h.outcomes(map[picker.Outcome]int64{tc.outcome: 1})
			stats := h.picker.Stats()[0]
			var attempts, failures []int64
			retries := int64(-1)
			for i, ep := range stats.Endpoints {
				n := reached[i].Load()
				if tc.engines[i] == "dead" {
					n = -1
				}
				attempts, failures = append(attempts, n), append(failures, ep.Failures)
				if n != 0 && (n > 0 || ep.Failures > 0) {
					retries++
				}
			}
			if diff := cmp.Diff(tc.attempts, attempts); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.failures, failures); diff != "" {
				t.Errorf("failures (-want +got):\n%s", diff)
			}
			if stats.Retries != retries {
				t.Errorf("%d retries counted, want %d", stats.Retries, retries)
			}
		})
	}
}

func TestAConnectionThatTheEngineHasJustClosedIsNoFailure(t *testing.T) {
	// The engine closes each kept connection when it receives the second request, like one whose keep-alive time has just
	// run out.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var seen atomic.Int64
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := seen.Add(1); n%2 == 0 {
			answers["reset"](w, r)
			return
		}
		answers["ok"](w, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })

	h := newHouse(t, Options{}, spec(l.Addr().String()))
	for range 3 {
		if r := h.post("/v1/completions", streamed); r.StatusCode != 200 {
			t.Errorf("status %d: %s", r.StatusCode, read(t, r))
		} else {
			read(t, r) // so that the connection is kept
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 3})
	if n := h.picker.Stats()[0].Endpoints[0].Failures; n != 0 {
		t.Errorf("%d failures", n)
	}
	if n := seen.Load(); n != 5 {
		t.Errorf("the engine has seen %d requests, want 3 and 2 on closed connections", n)
	}
}
