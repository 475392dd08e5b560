package httpproxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// dice is a random source for many goroutines.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

// unreliable is an engine that does anything that engines do.
func unreliable(d *dice) http.HandlerFunc {
	tokens := func(w http.ResponseWriter, r *http.Request, n int) {
		eventStream(w)
		for range n {
			say(w, token("x"))
			if d.roll(4) == 0 && r.Context().Err() != nil {
				return
			}
			runtime.Gosched()
		}
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if d.roll(5) > 0 {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		switch d.roll(10) {
		case 0:
			answers["500"](w, r)
		case 1:
			answers["400"](w, r)
		case 2:
			answers["reset"](w, r)
		case 3:
			answers["silent"](w, r)
		case 4:
			tokens(w, r, d.roll(20))
			panic(http.ErrAbortHandler)
		case 5:
			tokens(w, r, 1<<30)
		case 6:
			answers["ok"](w, r)
		default:
			tokens(w, r, d.roll(50))
			say(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":64,\"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\n\n")
		}
	}
}

// impatient is a client that can leave at any time.
func (d *dice) impatient(client *http.Client, url string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if d.roll(2) == 0 {
		timer := time.AfterFunc(time.Duration(d.roll(20_000))*time.Microsecond, cancel)
		defer timer.Stop()
	}
	// No client is to wait for an answer that never ends.
	last := time.AfterFunc(100*time.Millisecond, cancel)
	defer last.Stop()

	body := strings.Replace(streamed, "1,2,3", fmt.Sprintf("%d,2,%d", d.roll(4), d.roll(1<<d.roll(30))), 1)
	switch d.roll(20) {
	case 0:
		body = body[:d.roll(len(body))]
	case 1:
		body = strings.Replace(body, `"m"`, `"nobody"`, 1)
	case 2:
		body = `{"model":"m","prompt":"` + strings.Repeat("x", 200<<10) + `"}`
	}
	var reader io.Reader = strings.NewReader(body)
	if d.roll(3) == 0 {
		reader = io.MultiReader(reader)
	}
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/completions", reader)
	if err != nil {
		return
	}
	answer, err := client.Do(r)
	if err != nil {
		return
	}
	limit := int64(1 << 40)
	if d.roll(3) == 0 {
		limit = int64(d.roll(500))
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, limit))
	_ = answer.Body.Close()
}

// After a storm of everything that engines and clients do, nothing is left: no load, no speculation, no byte of a body,
// no goroutine. KVASIR_SOAK makes it as long as it says.
func TestNothingIsLeftAfterChaos(t *testing.T) {
	length := time.Duration(0)
	if text := os.Getenv("KVASIR_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	end := time.Now().Add(length)
	before := runtime.NumGoroutine()
	t.Run("chaos", func(t *testing.T) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		d := &dice{r: rand.New(rand.NewPCG(seed, 0))}
		engines := []string{nobodyAt(t)}
		for range 3 {
			engines = append(engines, engine(t, unreliable(d)))
		}
		s := spec(engines...)
		s.Policy.Attempts, s.Policy.RetryFirstByte, s.Policy.FirstByte = 4, true, 30*time.Millisecond
		s.Policy.CircuitFailures, s.Policy.CircuitOpen = 5, 5*time.Millisecond
		book := new(ledger)
		h := newHouse(t, Options{Usage: usagelog.New(book)}, s)

		const clients, each = 12, 30
		var wait, changes sync.WaitGroup
		for i := range clients {
			client := client1or2(t, i%4 == 0)
			wait.Go(func() {
				for n := 0; n < each || time.Now().Before(end); n++ {
					d.impatient(client, h.url)
				}
			})
		}
		// Endpoints are added and removed meanwhile.
		over := make(chan struct{})
		changes.Go(func() {
			for n := 0; ; n++ {
				next := spec(engines[:len(engines)-n%2]...)
				next.Policy = s.Policy
				if err := h.picker.Apply([]picker.Spec{next}); err != nil {
					t.Error(err)
				}
				select {
				case <-over:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
		wait.Wait()
		close(over)
		changes.Wait()

		h.idle()
		stats := h.picker.Stats()[0]
		ended := int64(0)
		for _, n := range stats.Outcomes {
			ended += n
		}
		picked := int64(h.seen.count(func(r *recorder) int { return r.picked }))
		told := h.seen.count(func(r *recorder) int {
			n := 0
			for _, m := range r.ended {
				n += m
			}
			return n
		})
		refusals := h.seen.count(func(r *recorder) int {
			n := 0
			for _, m := range r.refused {
				n += m
			}
			return n
		})
		h.stop()
		if n := book.len(); n != told+refusals {
			t.Errorf("%d records of %d requests", n, told+refusals)
		}
		if ended != picked || int64(told) != picked {
			t.Errorf("%d picked, %d ended, %d told", picked, ended, told)
		}
		for o := range picker.Rejected + 1 {
			if stats.Outcomes[o] == 0 {
				t.Errorf("no request ended as %v: the chaos is too tame: %v", o, stats.Outcomes)
			}
		}
		t.Logf("%v, %d retries, %v", stats.Outcomes, stats.Retries, h.seen.refused)
		h.stop()
	})
	eventually(t, fmt.Sprintf("as many goroutines as before (%d)", before), func() bool {
		http.DefaultClient.CloseIdleConnections()
		return runtime.NumGoroutine() <= before
	})
}

// faulty is a tokenizer that panics.
type faulty struct{}

func (faulty) AppendKeys(context.Context, []kvblock.Key, []byte, *openai.Request, tokenizer.Chain) ([]kvblock.Key, int, error) {
	panic("at the disco")
}

func (faulty) Others(context.Context, *openai.Request, tokenizer.Chain, func([]kvblock.Key, int)) error {
	panic("at the disco")
}

func TestAPanicHurtsItsRequestOnly(t *testing.T) {
	p := picker.New(picker.Options{Log: logr.Discard()})
	s := spec(engine(t, sum))
	s.Policy.TokenBudget = time.Second
	if err := p.Apply([]picker.Spec{s}); err != nil {
		t.Fatal(err)
	}
	p.SetExact(s.Namespace, s.Name, &picker.Exact{Texts: faulty{}})
	seen, book := new(recorder), new(ledger)
	proxy := New(Options{Picker: p, Observer: seen, Usage: usagelog.New(book), Log: logr.Discard()})
	defer proxy.Close()
	server := httptest.NewServer(proxy)
	defer server.Close()
	for body, want := range map[string]int{`{"model":"m","prompt":"text"}`: 500, streamed: 200} {
		r, err := http.Post(server.URL+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if text := read(t, r); r.StatusCode != want || want == 500 && !strings.Contains(text, "internal_error") {
			t.Errorf("status %d, want %d: %s", r.StatusCode, want, text)
		}
		_ = r.Body.Close()
	}
	reasons := map[string]int{book.next(t, 0).Reason: 1}
	reasons[book.next(t, 1).Reason]++
	if book.len() != 2 || reasons[request.RefusedPanic] != 1 || reasons[""] != 1 {
		t.Errorf("%d records, for the reasons %v", book.len(), reasons)
	}
	if n := seen.refused[request.RefusedPanic]; n != 1 || proxy.budget.Stats().Held != 0 {
		t.Errorf("%d panics counted, %d bytes held", n, proxy.budget.Stats().Held)
	}
}

func TestLargeBodiesDoNotStayInMemory(t *testing.T) {
	s := spec(engine(t, sum))
	s.MaxRequestBody = 128 << 20
	h := newHouse(t, Options{}, s)
	const size = 100 << 20
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // what pools have kept, too
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	request, err := http.NewRequest("POST", h.url+"/v1/completions", zeros(size))
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, h.do(request)); !strings.HasPrefix(got, fmt.Sprint(size, " ")) {
		t.Errorf("%s", got)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
	if after := heap(); after > before+16<<20 {
		t.Errorf("%d MiB on the heap before, %d MiB after", before>>20, after>>20)
	}
}
