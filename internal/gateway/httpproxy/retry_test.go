package httpproxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/engines/transport"
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
	all := func(p *picker.PolicySpec) { p.RetryFirstByte = true; p.FirstByte = inTime }
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
		"time-outs not tried again": {[]string{"silent", "ok"}, func(p *picker.PolicySpec) { p.FirstByte = inTime },
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

// stale is a connection that its engine closes between the choice of it for a request and the writing of the request.
type stale struct {
	*net.TCPConn
	closing *atomic.Pointer[func()]
}

func (c stale) Write(p []byte) (int, error) {
	if f := c.closing.Swap(nil); f != nil {
		(*f)()
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if raw, err := c.SyscallConn(); err != nil || raw.Control(func(fd uintptr) {
				n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
				if n == 0 && err == nil {
					deadline = time.Time{}
				}
			}) != nil {
				break
			}
		}
	}
	return c.TCPConn.Write(p)
}

// TestAConnectionThatTheEngineHasJustClosedIsNoFailure: like one whose keep-alive time has run out just when a request is sent. It is
// no failure and no retry. Without a new connection, the engine has not received the request.
func TestAConnectionThatTheEngineHasJustClosedIsNoFailure(t *testing.T) {
	var seen atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		answers["ok"](w, r)
	}))
	t.Cleanup(server.Close)
	s := spec(server.Listener.Addr().String())
	s.Policy.RetryReset = false
	h := newHouse(t, Options{}, s)
	h.proxy.engines.Close()
	closing, gone := new(atomic.Pointer[func()]), new(atomic.Bool)
	h.proxy.engines = transport.NewTransports(func(ctx context.Context, network, address string) (net.Conn, error) {
		if gone.Load() {
			return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return stale{c.(*net.TCPConn), closing}, nil
	}, func() *http.Transport { return &http.Transport{MaxIdleConnsPerHost: 2} })
	end := server.CloseClientConnections
	for i, body := range []string{streamed, streamed, strings.Repeat(" ", 200<<10) + streamed, strings.Repeat(" ", 200<<10) + streamed} {
		if i == 1 || i == 3 { // the two sizes have connections of their own
			closing.Store(&end)
		}
		if r := h.post("/v1/completions", body); r.StatusCode != 200 {
			t.Errorf("status %d: %s", r.StatusCode, read(t, r))
		} else {
			read(t, r) // so that the connection is kept
		}
		if n := seen.Load(); n != int64(i+1) {
			t.Errorf("the engine has seen %d requests of %d", n, i+1)
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 4})
	if s := h.picker.Stats()[0]; s.Endpoints[0].Failures != 0 || s.Retries != 0 || s.Unretried != 0 {
		t.Errorf("%d failures, %d retries, %d not retried", s.Endpoints[0].Failures, s.Retries, s.Unretried)
	}
	closing.Store(&end)
	gone.Store(true)
	if r := h.post("/v1/completions", streamed); r.StatusCode != http.StatusBadGateway {
		t.Errorf("without an engine: status %d", r.StatusCode)
	}
	if h.proxy.suspects.Any() {
		t.Error("a request that no engine has received is suspect")
	}
}

// TestARequestThatEndsKeptConnectionsIsCounted: an engine stays there and drops the connections of some requests. Each is executed once,
// or with RetryReset by two pods, after which no pod gets it.
func TestARequestThatEndsKeptConnectionsIsCounted(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("RetryReset ", again), func(t *testing.T) {
			const kept = 8
			var drops, warmed [4]atomic.Int64
			var together [4]sync.WaitGroup
			var addresses []string
			for i := range drops {
				together[i].Add(kept)
				addresses = append(addresses, engine(t, func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					if strings.Contains(string(body), "poison") {
						drops[i].Add(1)
						panic(http.ErrAbortHandler)
					}
					if warmed[i].Add(1) <= kept {
						together[i].Done()
						together[i].Wait()
					}
				}))
			}
			s := spec(addresses...)
			s.Policy.Attempts, s.Policy.RetryReset = len(addresses), again
			h := newHouse(t, Options{}, s)
			var all sync.WaitGroup
			for range kept * len(addresses) {
				all.Go(func() { _ = read(t, h.post("/v1/completions", streamed)) })
			}
			all.Wait()
			h.idle()
			want, code := int64(1), `"upstream_failed"`
			if again {
				want, code = breaks, `"engines_broke_off"`
			}
			if text := read(t, h.post("/v1/completions", poison)); !strings.Contains(text, code) {
				t.Error(text)
			}
			got, failures := int64(0), int64(0)
			for i, e := range h.picker.Stats()[0].Endpoints {
				got += drops[i].Load()
				failures += e.Failures
				if n := drops[i].Load(); n > 1 {
					t.Errorf("engine %d has executed it %d times", i, n)
				}
			}
			if got != want || failures != want {
				t.Errorf("engines have executed it %d times, %d failures, want %d", got, failures, want)
			}
		})
	}
}
