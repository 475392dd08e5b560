package httpproxy

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
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
	s.Policy.Attempts = n // as many as the policy may allow
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

const poison = `{"model":"m","prompt":"poison"}`

// A request that crashes engines crashes two: no other is tried, and for five minutes nobody gets it, however often its
// client comes again. Other requests are not touched.
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
	if n := dead(); n != maxBreaks {
		t.Fatalf("one request has taken %d engines", n)
	}
	for range 10 {
		r = h.post("/v1/completions", poison)
		if text := read(t, r); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") != "300" || !strings.Contains(text, `"engines_broke_off"`) {
			t.Errorf("status %d, Retry-After %q, %s", r.StatusCode, r.Header.Get("Retry-After"), text)
		}
	}
	if n := dead(); n != maxBreaks || h.seen.refused[RefusedSuspect] != 10 {
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
	at = at.Add(suspicion)
	mu.Unlock()
	if r = h.post("/v1/completions", poison); r.StatusCode != http.StatusBadGateway {
		t.Errorf("after the time: status %d", r.StatusCode)
	}
	if n := dead(); n > 2*maxBreaks {
		t.Errorf("%d engines have died", n)
	}
}

// Who dies in the middle of an answer counts, too: nobody is tried then, but the client comes again.
func TestOneRequestCannotTakeEngineAfterEngineByItsClient(t *testing.T) {
	h, dead := graveyard(t, 5, nil)
	for i := range 6 {
		r := h.post("/v1/completions", `{"model":"m","stream":true,"prompt":"slow poison"}`)
		text, err := io.ReadAll(r.Body)
		if refused := i >= maxBreaks; refused != (r.StatusCode == http.StatusServiceUnavailable) || !refused && err == nil {
			t.Errorf("request %d: status %d, %q, %v", i, r.StatusCode, text, err)
		}
	}
	if n := dead(); n != maxBreaks {
		t.Errorf("one client has taken %d engines", n)
	}
}

// What is not an engine's death does not make a request suspect.
func TestOtherFailuresMakeNoRequestSuspect(t *testing.T) {
	gone := func(w http.ResponseWriter, r *http.Request) { answers["reset"](w, r) }
	for name, kinds := range map[string][]http.HandlerFunc{
		"server errors":         {answers["500"], answers["503"], answers["500"]},
		"nobody listens":        {nil, nil, nil},
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
		if n := h.proxy.suspects.known.Load(); n != 0 {
			t.Errorf("%d requests are suspect", n)
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
	mark := h.proxy.suspects.mark(r, []byte(streamed))
	for _, pod := range []string{"a", "b"} {
		h.proxy.suspects.broke(mark, pod, time.Now())
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
	if h.proxy.suspects.refused(mark, time.Now()) != 0 || h.proxy.suspects.known.Load() != 0 {
		t.Error("it is suspect after an answer")
	}
	other := r.Clone(t.Context())
	other.Method = http.MethodGet
	if h.proxy.suspects.mark(other, []byte(streamed)) == mark {
		t.Error("another method is the same request")
	}
}

// The table against its model, which forgets nothing before its time.
func TestSuspectsAgainstAModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s, now := newSuspects(), time.Unix(1, 0)
	type record struct {
		engines map[string]bool
		last    time.Time
	}
	model := map[uint64]record{}
	for range 20_000 {
		now = now.Add(time.Duration(rng.IntN(int(suspicion / 50))))
		mark, by := uint64(rng.IntN(50)), fmt.Sprint(rng.IntN(4))
		m, ok := model[mark]
		if !ok || now.Sub(m.last) >= suspicion {
			m = record{engines: map[string]bool{}}
		}
		if rng.IntN(2) == 0 {
			m.engines[by], m.last = true, now
			model[mark] = m
			if got, want := s.broke(mark, by, now), len(m.engines) >= maxBreaks; got != want {
				t.Fatalf("enough %v, want %v", got, want)
			}
			continue
		}
		want := time.Duration(0)
		if len(m.engines) >= maxBreaks {
			want = m.last.Add(suspicion).Sub(now)
		}
		if got := s.refused(mark, now); got != want {
			t.Fatalf("refused for %v, want %v", got, want)
		}
	}
	for i := range 3 * maxSuspects {
		s.broke(uint64(1000+i), "", now.Add(time.Duration(i)))
		if n := len(s.all); n > maxSuspects || int64(n) != s.known.Load() {
			t.Fatalf("%d requests are remembered, %d counted", n, s.known.Load())
		}
	}
	if s.all[uint64(1000+3*maxSuspects-1)] == nil || s.all[1000] != nil {
		t.Error("it is not the oldest that is forgotten")
	}
}
