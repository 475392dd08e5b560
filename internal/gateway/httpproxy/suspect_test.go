package httpproxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/picker/circuit"
)

// mortal is an engine that dies of a request that says "poison": its process is gone, with all its connections.
type mortal struct {
	server *httptest.Server
	mu     sync.Mutex
	dead   bool // guarded by mu
	asked  int  // guarded by mu
}

func newMortal(t *testing.T) *mortal {
	t.Helper()
	m := &mortal{}
	m.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m.mu.Lock()
		m.asked++
		m.mu.Unlock()
		if strings.Contains(string(body), "slow poison") {
			eventStream(w)
			say(w, token("a"))
		}
		if strings.Contains(string(body), "poison") {
			m.mu.Lock()
			m.dead = true
			m.mu.Unlock()
			_ = m.server.Listener.Close()
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
			return
		}
		_, _ = io.WriteString(w, "fine")
	}))
	t.Cleanup(m.server.Close)
	return m
}

func (m *mortal) died() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.dead }

// graveyard is a proxy before so many engines that die, and how many have.
func graveyard(t *testing.T, n int, now func() time.Time) (h *house, dead func() int) {
	t.Helper()
	var engines []*mortal
	var addresses []string
	for range n {
		m := newMortal(t)
		engines, addresses = append(engines, m), append(addresses, m.server.Listener.Addr().String())
	}
	s := spec(addresses...)
	s.Policy.Attempts = n // as many as the policy can allow
	return newHouse(t, Options{Now: now}, s), func() int {
		all := 0
		for _, m := range engines {
			if m.died() {
				all++
			}
		}
		return all
	}
}

// breaks is how many engines a request can crash.
const breaks = 2

const poison = `{"model":"m","prompt":"poison"}`

// A request that crashes engines crashes two: it is tried on no other, and for five minutes no engine gets it, however often
// its client sends it again. Other requests are not affected.
func TestOneRequestCannotTakeEngineAfterEngine(t *testing.T) {
	var mu sync.Mutex
	at := time.Unix(1_000_000, 0)
	now := func() time.Time { mu.Lock(); defer mu.Unlock(); return at }
	h, dead := graveyard(t, 6, now)
	if text := read(t, h.post("/v1/completions", `{"model":"m","prompt":"x"}`)); text != "fine" {
		t.Fatalf("%q", text)
	}
	r := h.post("/v1/completions", poison)
	if text := read(t, r); r.StatusCode != http.StatusBadGateway || !strings.Contains(text, `"engines_broke_off"`) {
		t.Errorf("status %d, %s", r.StatusCode, text)
	}
	if n := dead(); n != breaks {
		t.Fatalf("one request has taken %d engines", n)
	}
	for range 10 {
		r = h.post("/v1/completions", poison)
		if text := read(t, r); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") != "300" || !strings.Contains(text, `"engines_broke_off"`) {
			t.Errorf("status %d, Retry-After %q, %s", r.StatusCode, r.Header.Get("Retry-After"), text)
		}
	}
	if n := dead(); n != breaks || h.seen.refused[request.RefusedSuspect] != 10 {
		t.Fatalf("%d engines have died, %v", n, h.seen.refused)
	}
	for range 6 { // to the others, and to the dead ones, which are passed over
		if r = h.post("/v1/completions", `{"model":"m","prompt":"another"}`); r.StatusCode != http.StatusOK {
			t.Errorf("another request: status %d, %s", r.StatusCode, read(t, r))
		}
	}
	if r = h.post("/v1/chat/completions", poison); r.StatusCode == http.StatusServiceUnavailable {
		t.Error("another path is refused too")
	}
	mu.Lock()
	at = at.Add(circuit.Suspicion)
	mu.Unlock()
	if r = h.post("/v1/completions", poison); r.StatusCode != http.StatusBadGateway {
		t.Errorf("after the time: status %d", r.StatusCode)
	}
	if n := dead(); n > 2*breaks {
		t.Errorf("%d engines have died", n)
	}
}

// A crash in the middle of an answer counts, too: no other engine is tried then, but the client sends the request again.
func TestOneRequestCannotTakeEngineAfterEngineByItsClient(t *testing.T) {
	h, dead := graveyard(t, 5, nil)
	for i := range 6 {
		r := h.post("/v1/completions", `{"model":"m","stream":true,"prompt":"slow poison"}`)
		text, err := io.ReadAll(r.Body)
		if refused := i >= breaks; refused != (r.StatusCode == http.StatusServiceUnavailable) || !refused && err == nil {
			t.Errorf("request %d: status %d, %q, %v", i, r.StatusCode, text, err)
		}
	}
	if n := dead(); n != breaks {
		t.Errorf("one client has taken %d engines", n)
	}
}

// What is not an engine's death does not make a request suspect.
func TestOtherFailuresMakeNoRequestSuspect(t *testing.T) {
	gone := func(w http.ResponseWriter, r *http.Request) { answers["reset"](w, r) }
	for name, kinds := range map[string][]http.HandlerFunc{
		"server errors":         {answers["500"], answers["503"], answers["500"]},
		"no process listens":    {nil, nil, nil},
		"one engine that fails": {gone, nil, nil},
		"time-outs":             {answers["silent"], answers["silent"], answers["silent"]},
	} {
		t.Run(name, func(t *testing.T) {
			var addresses []string
			for _, f := range kinds {
				if f == nil {
					addresses = append(addresses, nobodyAt(t))
				} else {
					addresses = append(addresses, engine(t, f))
				}
			}
			s := spec(addresses...)
			s.Policy.FirstByte, s.Policy.RetryFirstByte = 20*time.Millisecond, true
			h := newHouse(t, Options{}, s)
			for range 4 {
				if r := h.post("/v1/completions", streamed); strings.Contains(read(t, r), "engines_broke_off") {
					t.Fatal("it is refused")
				}
			}
			h.outcomes(map[picker.Outcome]int64{picker.Failed: 4})
		})
	}
	t.Run("clients that leave", func(t *testing.T) {
		h := newHouse(t, Options{}, spec(engine(t, answers["silent"]), engine(t, answers["silent"])))
		for range 3 {
			conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(streamed), streamed)
			eventually(t, "it is on its way", func() bool {
				return h.picker.Stats()[0].Endpoints[0].Load.InFlight+h.picker.Stats()[0].Endpoints[1].Load.InFlight > 0
			})
			_ = conn.Close()
			h.idle()
		}
		if h.proxy.suspects.Any() {
			t.Error("requests are suspect")
		}
	})
}

// A prompt that many ask for is under way everywhere when engines are restarted, or crash on another one. It is suspected
// only until one of those under way is answered.
func TestAnAnswerClearsARequest(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	h := newHouse(t, Options{}, spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.RawQuery == "slow" {
			close(asked)
			<-answer
		}
		_, _ = io.WriteString(w, `{}`)
	})))
	text := make(chan string, 1)
	go func() { text <- read(t, h.post("/v1/completions?slow", streamed)) }()
	<-asked
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/completions?slow", nil)
	if err != nil {
		t.Fatal(err)
	}
	mark := markOf(h.proxy.suspects, r, []byte(streamed))
	for _, pod := range []string{"a", "b"} {
		h.proxy.suspects.Broke(mark, pod, time.Now())
	}
	if r := h.post("/v1/completions?slow", streamed); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("while it is suspect: status %d", r.StatusCode)
	}
	if r := h.post("/v1/completions?other", streamed); r.StatusCode != http.StatusOK {
		t.Errorf("with another query: status %d", r.StatusCode)
	}
	close(answer)
	if got := <-text; got != `{}` {
		t.Errorf("%q", got)
	}
	h.idle()
	if h.proxy.suspects.Refused(mark, time.Now()) != 0 || h.proxy.suspects.Any() {
		t.Error("it is suspect after an answer")
	}
	other := r.Clone(t.Context())
	other.Method = http.MethodGet
	if markOf(h.proxy.suspects, other, []byte(streamed)) == mark {
		t.Error("another method is the same request")
	}
}

// A nonce in the request does not get it past the guard, and neither does sending it when no other request is in progress.
func TestAKillerRequestWithANonceIsTheSame(t *testing.T) {
	h, dead := graveyard(t, 6, time.Now)
	for i := range 6 {
		_ = read(t, h.post("/v1/completions", fmt.Sprintf(`{"model":"m","user":"%08x-%d","prompt":"poison","seed":%d}`, 77777*i, i, i)))
	}
	if n := dead(); n > breaks {
		t.Errorf("requests that differ in a nonce have taken %d engines", n)
	}
}

// ConnectFailure alone sends nothing again that an engine has received.
func TestARequestThatWasReceivedIsNotAConnectFailure(t *testing.T) {
	var engines []string
	var asked atomic.Int64
	for range 4 {
		engines = append(engines, engine(t, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			answers["reset"](w, r)
		}))
	}
	s := spec(engines...)
	s.Policy.Attempts, s.Policy.RetryReset = 4, false
	h := newHouse(t, Options{}, s)
	if r := h.post("/v1/completions", poison); r.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d", r.StatusCode)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d engines have received it", n)
	}
}

// TestRetriesHaveABudget: while all engines fail, they get about a fifth more requests than clients send.
func TestRetriesHaveABudget(t *testing.T) {
	var asked atomic.Int64
	var engines []string
	for range 3 {
		engines = append(engines, engine(t, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			answers["500"](w, r)
		}))
	}
	h := newHouse(t, Options{}, spec(engines...))
	const n = 300
	for i := range n {
		_ = read(t, h.post("/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"%d"}`, i)))
	}
	if got := asked.Load(); got > n*5/4+25 || got < n+20 {
		t.Errorf("%d requests of clients have become %d", n, got)
	}
	if h.picker.Stats()[0].Unretried == 0 {
		t.Error("nothing is counted as over the budget")
	}
}

// TestWhatIsMissingHereIsNotTheEnginesFault: descriptors and the like.
func TestWhatIsMissingHereIsNotTheEnginesFault(t *testing.T) {
	for fault, local := range map[error]bool{
		&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}:         true,
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}: true,
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}:  false,
		io.EOF: false,
	} {
		if got := transport.LocalFault(fmt.Errorf("attempt: %w", fault)); got != local {
			t.Errorf("%v: local %v", fault, got)
		}
	}
}

// TestALackOfDescriptorsOpensNoCircuit: an engine that could not be asked has not failed.
func TestALackOfDescriptorsOpensNoCircuit(t *testing.T) {
	for fault, want := range map[syscall.Errno]bool{syscall.EMFILE: true, syscall.ECONNREFUSED: false} {
		s := spec(engine(t, sum))
		s.Policy.CircuitFailures, s.Policy.CircuitOpen = 1, time.Hour
		lost := false
		h := newHouse(t, Options{Unreachable: func(string, []*endpoint.Endpoint) bool { lost = true; return false }}, s)
		h.proxy.engines.Close()
		h.proxy.engines = transport.NewTransports(func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", fault)}
		}, func() *http.Transport { return &http.Transport{} })
		if r := h.post("/v1/completions", `{"model":"m","prompt":"x"}`); r.StatusCode < 500 {
			t.Errorf("%v: status %d without an engine", fault, r.StatusCode)
		}
		if closed := h.picker.Stats()[0].Endpoints[0].CircuitClosed; closed != want || lost == want {
			t.Errorf("%v: circuit closed %t, engine lost %t", fault, closed, lost)
		}
		h.idle()
	}
}
