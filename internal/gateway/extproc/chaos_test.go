package extproc

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// However a body and its answer are cut, ended and shown, the pick is the same and the bytes are.
func TestRandomCutsMakeNoDifference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var engines []string
	for range 4 {
		engines = append(engines, digest(t))
	}
	s := spec(engines...)
	s.Policy.Strategy = policy.Config{Type: policy.Rendezvous, Rendezvous: policy.RendezvousConfig{ByPrefix: true, PrefixTokens: 64}}
	h := newHouse(t, Options{}, ServeOptions{}, s)
	n := int64(0)
	for range 6 {
		var body strings.Builder
		body.WriteString(`{"stream":true,"model":"m","prompt":[`)
		for range rng.IntN(20000) {
			fmt.Fprintf(&body, "%d,", rng.IntN(100000))
		}
		body.WriteString("1]}")
		var first string
		for i := range 5 {
			g := h.envoy(envoytest.Options{Seed: rng.Uint64(), DuplicateEnd: i%2 == 1, HalfClose: i%3 == 1, Served: true})
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/completions", io.NopCloser(strings.NewReader(body.String())))
			if err != nil {
				t.Fatal(err)
			}
			if i == 4 {
				r.Trailer = http.Header{"X-T": {"1"}}
			}
			if text := read(t, g.do(r)); text != body.String() {
				t.Fatalf("%d bytes come back of %d", len(text), body.Len())
			}
			n++
			h.seen.mu.Lock()
			picked := h.seen.targets[len(h.seen.targets)-1]
			h.seen.mu.Unlock()
			if first == "" {
				first = picked
			}
			if picked != first {
				t.Errorf("cut another way the request goes to %s, not to %s", picked, first)
			}
		}
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: n})
}

// chaos is an engine that does whatever engines do, by the request's number.
func chaos(t *testing.T) string {
	return engine(t, func(w http.ResponseWriter, r *http.Request) {
		body := readRequest(r)
		flush := func() { _ = http.NewResponseController(w).Flush() }
		switch {
		case strings.Contains(body, "break"):
			_, _ = io.WriteString(w, "half")
			flush()
			panic(http.ErrAbortHandler)
		case strings.Contains(body, "drop"):
			panic(http.ErrAbortHandler)
		case strings.Contains(body, "error"):
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.Contains(body, "hang"):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
			flush()
			<-r.Context().Done()
		case strings.Contains(body, "trail"):
			w.Header().Set("Trailer", "X-T")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("X-T", "1")
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			for range 10 {
				_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
				flush()
			}
		}
	})
}

// After a storm of everything that gateways, clients and engines do, nothing is left: no load, no speculation, no byte
// of a body, no stream, no goroutine. KVASIR_SOAK makes it as long as it says.
func TestNothingIsLeftAfterChaos(t *testing.T) {
	length := time.Second
	if text := os.Getenv("KVASIR_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	before := runtime.NumGoroutine()
	one, two := chaos(t), chaos(t)
	s := spec(one, two)
	s.Policy.Strategy = policy.Config{Type: policy.LeastLoad}
	book := new(ledger)
	h := newHouse(t, Options{Usage: usagelog.New(book)}, ServeOptions{ConnectionAge: 300 * time.Millisecond}, s)
	h.server.gateways.learn(route{host: "127.0.0.1"})
	modes := []*filter.ProcessingMode_BodySendMode{nil, nil, nil, envoytest.WithMode(filter.ProcessingMode_BUFFERED), envoytest.WithMode(filter.ProcessingMode_STREAMED)}
	var gates []*standIn
	for i := range 10 {
		gates = append(gates, h.envoy(envoytest.Options{
			Seed: uint64(i), Request: modes[i%5], DuplicateEnd: i == 1, HalfClose: i == 2, Served: i == 6, MessageTimeout: patience,
		}))
	}
	end := time.Now().Add(length)
	kinds := []string{"fine", "fine", "break", "drop", "error", "hang", "trail", "{"}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	var wait sync.WaitGroup
	for worker := range 16 {
		wait.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 3))
			for time.Now().Before(end) {
				storm(client, rng, gates[rng.IntN(len(gates))].url, kinds[rng.IntN(len(kinds))])
			}
		})
	}
	wait.Wait()
	client.CloseIdleConnections()
	h.idle()
	stats := h.picker.Stats()[0]
	t.Logf("outcomes %v, refused %v", stats.Outcomes, h.seen.refused)
	for _, o := range []picker.Outcome{picker.Completed, picker.ClientGone, picker.Failed} {
		if stats.Outcomes[o] == 0 {
			t.Errorf("no request was %v: the storm is no storm", o)
		}
	}
	for _, g := range gates {
		g.close()
	}
	h.stop()
	told := 0
	for _, n := range h.seen.refused {
		told += n
	}
	for _, n := range h.seen.ended {
		told += n
	}
	if n := book.len(); n != told {
		t.Errorf("%d records of %d requests", n, told)
	}
	http.DefaultClient.CloseIdleConnections()
	eventually(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+8 }) // those of the engines' servers
}

// storm sends one request and can give it up at any moment.
func storm(client *http.Client, rng *rand.Rand, url, kind string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if kind == "hang" || rng.IntN(4) == 0 {
		timer := time.AfterFunc(time.Duration(rng.IntN(20))*time.Millisecond, cancel)
		defer timer.Stop()
	}
	body := fmt.Sprintf(`{"model":"m","stream":%v,"prompt":"%s %s"}`, rng.IntN(2) == 0, kind, strings.Repeat("x", rng.IntN(100_000)))
	if kind == "{" {
		body = "{"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", io.NopCloser(strings.NewReader(body)))
	if err != nil {
		return
	}
	answer, err := client.Do(r)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body) // it might end early
	_ = answer.Body.Close()
}
