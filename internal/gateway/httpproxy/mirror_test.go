package httpproxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/modelroute"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// mirroring is a route to the pool live, with copies for the pool copy.
func mirroring(percent int) modelroute.Route {
	r := routeTo("live")
	r.Rules[0].Mirrors = []modelroute.Mirror{{Backend: modelroute.Backend{Pool: "default/copy"}, Percent: percent}}
	return r
}

// copies are the counters of the pool copy.
func (h *house) copies() picker.MirrorStats {
	h.t.Helper()
	return h.picker.Routes()[0].Mirrors["default/copy"]
}

// streaming is an engine that streams a few events.
func streaming(t *testing.T) string {
	return engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for _, word := range []string{"a", "b", "c"} {
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"text\":%q}]}\n\n", word)
			w.(http.Flusher).Flush()
		}
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	})
}

// allBytes sends a request on a connection of its own and returns the status, header and body of the answer, without the date, and without
// how the body is framed, which depends on how fast its parts come.
func (h *house) allBytes(path, body string) string {
	h.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: same\r\nContent-Length: %d\r\n\r\n%s",
		path, len(body), body)
	if err != nil {
		h.t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	text := read(h.t, answer)
	for _, name := range []string{"Date", "Content-Length"} {
		answer.Header.Del(name)
	}
	return fmt.Sprint(answer.Status, answer.Header, answer.Close, "\n", text)
}

// TestAClientNoticesNothingOfAMirror: whatever becomes of the copy, the client gets the same bytes, and gets them before the mirror has
// answered. Nothing of either request is left.
func TestAClientNoticesNothingOfAMirror(t *testing.T) {
	// Of each case: the client has its answer, and its test is over, because net/http sees no end of a connection whose body was not read.
	var answered, over chan struct{}
	const cutOff = 3
	for name, tc := range map[string]struct {
		mirror http.HandlerFunc // nil: nothing listens
		ended  int              // in MirrorOutcomes; -1: not sent
	}{
		"that completes": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-answered // also if the copy comes later
			_, _ = io.WriteString(w, completed)
		}, 0},
		"that refuses": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusUnprocessableEntity)
		}, 1},
		"that fails": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"error":{"message":"x"}}`)
		}, 2},
		"that disconnects": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, 2},
		"where nothing listens": {nil, 2},
		"that stalls": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, cutOff},
		"that stalls in its answer": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			say(w, token("a"))
			<-r.Context().Done()
		}, cutOff},
		"that takes no byte of the body": {func(http.ResponseWriter, *http.Request) { <-over }, cutOff},
		"that answers without an end": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			for r.Context().Err() == nil {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 64<<10)); err != nil {
					return
				}
			}
		}, cutOff},
	} {
		t.Run(name, func(t *testing.T) {
			address := nobodyAt(t)
			if tc.mirror != nil {
				address = engine(t, tc.mirror)
			}
			answered, over = make(chan struct{}), make(chan struct{})
			release := sync.OnceFunc(func() { close(answered) })
			t.Cleanup(func() { release(); close(over) })
			timeout := time.Second // of copies that would not end
			if tc.ended != cutOff {
				timeout = patience
			}
			specs := []picker.Spec{named("live", streaming(t)), named("copy", address)}
			specs[0].Policy.AnswerHeaders = "Never"
			h := newHouse(t, Options{Mirroring: Mirroring{Timeout: timeout, MaxAnswer: 1 << 20}}, specs...)
			const body = `{"model":"chat","prompt":"x","stream":true}`
			h.apply(specs, routeTo("live"))
			want := h.allBytes("/v1/completions", body)
			h.apply(specs, mirroring(100))
			got := h.allBytes("/v1/completions", body)
			release()
			if got != want || !strings.Contains(got, "[DONE]") {
				t.Errorf("the answer is\n%s\nand without the mirror\n%s", got, want)
			}
			eventually(t, "the copy has ended", func() bool { return h.copies().Ended[tc.ended] == 1 })
			if s := h.copies(); s.Sent != 1 || s.Dropped != [picker.NumDrops]int64{} {
				t.Errorf("copies %+v", s)
			}
			h.idle()
			h.noCopies()
			for _, s := range h.picker.Stats() {
				if s.Pool == "copy" && s.Endpoints[0].Failures != 0 {
					t.Errorf("the mirror's endpoint is blamed for %d failures", s.Endpoints[0].Failures)
				}
			}
			if n := h.seen.count(func(r *recorder) int { return r.picked + r.first + r.ended[picker.Completed] + r.ended[picker.Failed] }); n != 6 {
				t.Errorf("the observer has seen %d steps, want those of the two requests alone", n)
			}
		})
	}
}

// noCopies waits until nothing of any copy is left.
func (h *house) noCopies() {
	h.t.Helper()
	m := h.proxy.mirrors
	eventually(h.t, "no copy is left", func() bool {
		m.slots.mu.Lock()
		defer m.slots.mu.Unlock()
		return m.slots.open == 0 && len(m.slots.owners) == 0 && m.Budget.Stats().Held == 0
	})
}

// TestWhatAMirrorGets: the client's body but for the name of the model, by the key of its own pool, and nothing that names the client.
func TestWhatAMirrorGets(t *testing.T) {
	type sent struct {
		header http.Header
		uri    string
		body   string
	}
	got := make(chan sent, 1)
	mirror := engine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- sent{r.Header, r.RequestURI, string(b)}
		_, _ = io.WriteString(w, completed)
	})
	live, copied := keyed(t, streaming(t)), named("copy", mirror)
	live.Name, live.Model, live.Aliases, live.Adapters = "live", "live", nil, nil
	live.EngineAPIKey, copied.EngineAPIKey = "key-of-live", "key-of-copy"
	specs := []picker.Spec{live, copied}
	h := newHouse(t, Options{}, specs...)
	h.apply(specs, mirroring(100))
	for _, key := range []string{"k-acme", "k-small"} {
		answer := h.post("/v1/completions?a=b", `{"prompt":"x","priority":3,"model":"chat"}`, "Authorization", "Bearer "+key, "X-Api-Key", key,
			"Cookie", "c=d", "Content-Type", "application/json; charset=utf-8", "X-Forwarded-For", "10.1.2.3", "Traceparent", "00-a-b-01",
			"X-Gateway-Inference-Fairness-Id", "acme", "X-Request-Id", "mine", "Priority", "u=1")
		_ = read(t, answer)
		if key == "k-small" { // its class has no such name: the client is refused, and nothing is copied
			if answer.StatusCode != http.StatusForbidden {
				t.Errorf("status %d", answer.StatusCode)
			}
			continue
		}
		s := await(t, "the copy", got)
		if want := `{"prompt":"x",             "model":"copy"}`; s.body != want || s.uri != "/v1/completions" {
			t.Errorf("the mirror gets %s %s, want %s", s.uri, s.body, want)
		}
		for name, want := range map[string]string{
			"Authorization": "Bearer key-of-copy", "Content-Type": "application/json; charset=utf-8", "X-Request-Id": "mine-mirror",
			"Accept-Encoding": "identity", "Content-Length": fmt.Sprint(len(s.body)),
		} {
			if s.header.Get(name) != want {
				t.Errorf("%s is %q, want %q", name, s.header.Get(name), want)
			}
			s.header.Del(name)
		}
		if len(s.header) != 0 {
			t.Errorf("the mirror gets %v, too", s.header)
		}
	}
	h.idle()
	if s := h.copies(); s.Sent != 1 {
		t.Errorf("copies %+v", s)
	}
}

// TestCopiesUnderWayHaveIDsOfTheirOwn: engines can fail if two requests have one. Two mirrors can be one pool under two names, and a client
// can use its id again once it has its answer, while the copy is still under way.
func TestCopiesUnderWayHaveIDsOfTheirOwn(t *testing.T) {
	ids, over := make(chan string, 8), make(chan struct{})
	mirror := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		ids <- r.Header.Get("X-Request-Id")
		<-over
		_, _ = io.WriteString(w, completed)
	})
	live, copied := named("live", streaming(t)), named("copy", mirror)
	copied.Adapters, copied.Policy.Admission.WaitBudget = []string{"lora"}, time.Hour
	specs := []picker.Spec{live, copied}
	h := newHouse(t, Options{}, specs...)
	route := mirroring(100)
	route.Rules[0].Mirrors = append(route.Rules[0].Mirrors, modelroute.Mirror{
		Backend: modelroute.Backend{Pool: "default/copy", Model: "lora"}, Percent: 100,
	})
	h.apply(specs, route)
	seen := map[string]bool{}
	for range 2 {
		_ = read(t, h.post("/v1/completions", `{"model":"chat","prompt":"x"}`, "X-Request-Id", "mine"))
		for range 2 {
			id := await(t, "the copy", ids)
			if seen[id] || !strings.HasPrefix(id, "mine-mirror") {
				t.Errorf("a copy has the id %s, and those before %v", id, seen)
			}
			seen[id] = true
		}
	}
	close(over)
	h.noCopies()
	eventually(t, "no id is kept", func() bool {
		h.proxy.ids.mu.Lock()
		defer h.proxy.ids.mu.Unlock()
		return len(h.proxy.ids.used) == 0
	})
}

// TestCopiesAreBounded in number and in bytes, while a mirror takes them and does not answer. Requests are served all the same.
func TestCopiesAreBounded(t *testing.T) {
	const most, size = 6, 100 << 10
	large := `{"model":"chat","prompt":"` + strings.Repeat("x", size) + `"}`
	for name, tc := range map[string]struct {
		bytes int64
		body  string
		why   picker.Drop
		sent  int64
	}{
		"by their number":  {1 << 30, `{"model":"chat","prompt":"x"}`, picker.DropBusy, most * 2 / 3},
		"by their bytes":   {size*mirrorShare + 64<<10, large, picker.DropMemory, 0},
		"by one's size":    {size * mirrorShare / 2, large, picker.DropMemory, 0},
		"to none at all":   {1, `{"model":"chat","prompt":"x"}`, picker.DropMemory, 0},
		"to a small share": {mirrorCost * 4, `{"model":"chat","prompt":"x"}`, picker.DropMemory, 2},
	} {
		t.Run(name, func(t *testing.T) {
			leave := make(chan struct{})
			var under, peak atomic.Int64
			mirror := engine(t, func(w http.ResponseWriter, r *http.Request) {
				if n := under.Add(1); n > peak.Load() {
					peak.Store(n)
				}
				defer under.Add(-1)
				<-leave
			})
			specs := []picker.Spec{named("live", streaming(t)), named("copy", mirror)}
			specs[1].Policy.Admission.WaitBudget = time.Hour // its queue is none of the bounds
			end := sync.OnceFunc(func() { close(leave) })
			t.Cleanup(end)
			pool := budget.New(tc.bytes, time.Now)
			h := newHouse(t, Options{Mirroring: Mirroring{Most: most, Budget: pool}}, specs...)
			h.apply(specs, mirroring(100))
			for range 4 * most {
				if text := read(t, h.post("/v1/completions", tc.body)); !strings.Contains(text, "[DONE]") {
					t.Fatalf("the client gets %s", text)
				}
				if held := pool.Stats().Held; held > tc.bytes {
					t.Fatalf("copies hold %d bytes", held)
				}
			}
			eventually(t, "all copies are counted", func() bool {
				s := h.copies()
				return s.Sent+s.Dropped[tc.why] == 4*most
			})
			s := h.copies()
			if tc.sent > 0 && s.Sent != tc.sent || s.Dropped[tc.why] == 0 {
				t.Errorf("copies %+v, want %d sent and the others dropped: %s", s, tc.sent, tc.why)
			}
			end()
			h.noCopies()
			if peak.Load() > most {
				t.Errorf("%d copies at once", peak.Load())
			}
			if tc.sent > 0 { // there is room again
				_ = read(t, h.post("/v1/completions", tc.body))
				eventually(t, "another copy is sent", func() bool { return h.copies().Sent == s.Sent+1 })
			}
			h.idle()
		})
	}
}

// TestCopiesDoNotHoldUpTheEnd of the picker.
func TestCopiesDoNotHoldUpTheEnd(t *testing.T) {
	reached := make(chan struct{})
	mirror := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(reached)
		<-r.Context().Done()
	})
	specs := []picker.Spec{named("live", streaming(t)), named("copy", mirror)}
	h := newHouse(t, Options{Mirroring: Mirroring{Timeout: time.Hour}}, specs...)
	h.apply(specs, mirroring(100))
	_ = read(t, h.post("/v1/completions", `{"model":"chat","prompt":"x"}`))
	await(t, "the copy", reached)
	stopped := make(chan struct{})
	go func() {
		h.stop()
		close(stopped)
	}()
	await(t, "the end", stopped)
	if s := h.copies(); s.Ended[3] != 1 {
		t.Errorf("copies %+v", s)
	}
	h.idle()
	h.noCopies()
}

// TestACopyIsSentOnceAndForOneRequestOnce: it is not tried elsewhere, and a request that goes to a fallback has no other one.
func TestACopyIsSentOnceAndForOneRequestOnce(t *testing.T) {
	var asked, fell atomic.Int64
	failing := func(n *atomic.Int64) string {
		return engine(t, func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusInternalServerError)
		})
	}
	specs := []picker.Spec{named("live", failing(&fell)), named("copy", failing(&asked), failing(&asked)), named("spare", streaming(t))}
	h := newHouse(t, Options{}, specs...)
	route := mirroring(100)
	rule := &route.Rules[0]
	rule.Fallbacks, rule.On, rule.Within = []modelroute.Backend{{Pool: "default/spare"}}, modelroute.Of(modelroute.Down), time.Minute
	h.apply(specs, route)
	if text := read(t, h.post("/v1/completions", `{"model":"chat","prompt":"x"}`)); !strings.Contains(text, "[DONE]") {
		t.Errorf("answer %s", text)
	}
	eventually(t, "the copy has ended", func() bool { return h.copies().Ended[2] == 1 })
	if asked.Load() != 1 || fell.Load() != 1 || h.copies().Sent != 1 {
		t.Errorf("the mirror was asked %d times, the pool %d times; copies %+v", asked.Load(), fell.Load(), h.copies())
	}
	h.idle()
}

// TestWhatIsNotCopied: requests that no engine gets, and those that the mirror gets anyway.
func TestWhatIsNotCopied(t *testing.T) {
	var asked atomic.Int64
	live, _ := counting(t)
	specs := []picker.Spec{named("live", live), named("copy", engine(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, completed)
	}))}
	specs[0].Policy.Responses = picker.ResponseCacheSpec{MaxBytes: 1 << 20, Life: time.Hour}
	specs[1].Policy.Responses = picker.ResponseCacheSpec{MaxBytes: 1 << 20, Life: time.Hour}
	h := newHouse(t, Options{}, specs...)
	h.apply(specs, mirroring(100))
	const body = `{"model":"chat","prompt":"x","temperature":0}`
	_ = read(t, h.post("/v1/completions", body))
	eventually(t, "the first copy", func() bool { return h.copies().Ended[0] == 1 })
	if cache := h.post("/v1/completions", body).Header.Get("X-Kvasir-Cache"); cache != "hit" {
		t.Fatalf("the second answer is a %q", cache)
	}
	if answer := h.post("/v1/completions", `{"model":"copy","prompt":"x","temperature":0}`); answer.Header.Get("X-Kvasir-Cache") != "miss" {
		t.Error("the answer to a copy was stored")
	}
	for name, tc := range map[string]struct{ path, body string }{
		"counts tokens":   {"/v1/messages/count_tokens", `{"model":"chat","messages":[{"role":"user","content":"x"}]}`},
		"in the back":     {"/v1/responses", `{"model":"chat","input":"x","background":true}`},
		"cannot be read":  {"/v1/completions", `{"model":"chat","prompt":`},
		"has a transfer":  {"/v1/completions", `{"model":"chat","prompt":"x","kv_transfer_params":{}}`},
		"no model's name": {"/v1/completions", `{"model":"other","prompt":"x"}`},
	} {
		before := h.copies()
		_ = read(t, h.post(tc.path, tc.body))
		if after := h.copies(); after != before {
			t.Errorf("%s: copies %+v, before %+v", name, after, before)
		}
	}
	route := mirroring(100)
	route.Rules[0].Backends[0].Pool = "default/copy" // a canary's share of the requests goes where the copies go
	h.apply(specs, route)
	before := h.copies()
	_ = read(t, h.post("/v1/completions", `{"model":"chat","prompt":"other"}`))
	if after := h.copies(); after != before {
		t.Errorf("copies %+v, before %+v", after, before)
	}
	h.apply(specs, mirroring(0))
	_ = read(t, h.post("/v1/completions", `{"model":"chat","prompt":"third"}`))
	if after := h.copies(); after != before || asked.Load() != 3 {
		t.Errorf("copies %+v, before %+v; the mirror was asked %d times", after, before, asked.Load())
	}
	h.idle()
	h.noCopies()
}

// BenchmarkMirror is one request through the proxy by a route: alone, with limits, and with a copy, of a small and of a large body. Client
// and engines are in the process. Copies that find no room in the mirror's pool are dropped; sent/op is the share that is sent.
func BenchmarkMirror(b *testing.B) {
	engine := httptest.NewServer(trivial(4))
	defer engine.Close()
	for _, size := range []int{1 << 10, 100 << 10} {
		body := []byte(`{"model":"chat","prompt":"` + strings.Repeat("x", size) + `"}`)
		for _, kind := range []string{"route", "limits", "mirror"} {
			b.Run(fmt.Sprintf("body=%dKiB/%s", size>>10, kind), func(b *testing.B) {
				p := picker.New(picker.Options{Log: logr.Discard()})
				specs := []picker.Spec{named("live", engine.Listener.Addr().String()), named("copy", engine.Listener.Addr().String())}
				route := routeTo("live")
				switch kind {
				case "limits":
					route.Limits = modelroute.Limits{RequestsPerMinute: 1 << 30, MaxConcurrent: 1 << 20}
				case "mirror":
					route = mirroring(100)
				}
				if err := p.Apply(specs, route); err != nil {
					b.Fatal(err)
				}
				proxy := New(Options{Picker: p, Log: logr.Discard()})
				server := httptest.NewServer(proxy)
				defer func() { server.Close(); proxy.Close() }()
				transport := &http.Transport{DisableCompression: true}
				defer transport.CloseIdleConnections()
				b.ReportAllocs()
				begin := cpu()
				for b.Loop() {
					r, err := http.NewRequest(http.MethodPost, server.URL+"/v1/completions", bytes.NewReader(body))
					if err != nil {
						b.Fatal(err)
					}
					answer, err := transport.RoundTrip(r)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
						b.Fatal(err, answer.Status)
					}
					_ = answer.Body.Close()
				}
				b.ReportMetric(float64((cpu()-begin).Microseconds())/float64(b.N), "cpu-µs/op")
				b.ReportMetric(float64(p.Routes()[0].Mirrors["default/copy"].Sent)/float64(b.N), "sent/op")
			})
		}
	}
}
