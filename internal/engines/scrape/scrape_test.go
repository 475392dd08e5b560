package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// reading is a call of Observe.
type reading struct {
	id endpoint.ID
	m  vllm.Metrics
	at time.Time
}

// log collects readings.
type log struct {
	mu       sync.Mutex
	readings []reading
	first    chan struct{}
}

func newLog() *log { return &log{first: make(chan struct{}, 1)} }

func (l *log) observe(id endpoint.ID, m vllm.Metrics, at time.Time) {
	l.mu.Lock()
	l.readings = append(l.readings, reading{id, m, at})
	l.mu.Unlock()
	select {
	case l.first <- struct{}{}:
	default:
	}
}

func (l *log) take() []reading {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.readings
	l.readings = nil
	return out
}

// pipes is a network inside the process, so that tests can run on a clock of their own.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// serve runs a handler behind pipes until the test's bubble ends.
func serve(t *testing.T, h http.HandlerFunc) *pipes {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(p) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return p
}

func page1(running, waiting int) string {
	return fmt.Sprintf("vllm:num_requests_running{engine=\"0\"} %d\nvllm:num_requests_waiting{engine=\"0\"} %d\n", running, waiting)
}

func target(pod string, rank int, address string) Target {
	return Target{ID: endpoint.ID{Pod: pod, Rank: rank}, Address: address, Rank: rank}
}

func TestOneQuestionServesAllRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		p := serve(t, func(w http.ResponseWriter, r *http.Request) {
			asked++
			if r.URL.Path != "/metrics" || r.Header.Get("Authorization") != "Bearer key" || r.Host != "pod:8000" {
				t.Errorf("asked for %s of %s with %q", r.URL.Path, r.Host, r.Header.Get("Authorization"))
			}
			_, _ = fmt.Fprint(w, page1(3, 1), "vllm:num_requests_running{engine=\"1\"} 5\n")
		})
		got := newLog()
		s := New(Options{Observe: got.observe, Dial: p.dial})
		defer s.Close()
		a, b := target("a", 0, "pod:8000"), target("a", 1, "pod:8000")
		a.APIKey, b.APIKey = "key", "key"
		start := time.Now()
		s.Set([]Target{a, b})
		synctest.Wait()
		want := []reading{{a.ID, vllm.Metrics{Running: 3, Waiting: 1}, start}, {b.ID, vllm.Metrics{Running: 5}, start}}
		if diff := cmp.Diff(want, got.take(), cmp.AllowUnexported(reading{})); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
}

func TestPaceFollowsWhatTheEngineSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		answer, asked := page1(0, 0), 0
		p := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			_, _ = fmt.Fprint(w, answer)
		})
		during := func(d time.Duration, then string) int {
			mu.Lock()
			answer, asked = then, 0
			mu.Unlock()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return asked
		}
		s := New(Options{Dial: p.dial})
		defer s.Close()
		s.Set([]Target{target("a", 0, "pod:8000")})
		during(10*time.Second, page1(0, 0))
		if n := during(30*time.Second, page1(0, 0)); n < 18 || n > 23 {
			t.Errorf("an idle engine was asked %d times in 30 s, want about 20", n)
		}
		if n := during(32*time.Second, page1(2, 0)); n < 130 || n > 180 {
			t.Errorf("a busy engine was asked %d times in 32 s, want about 155", n)
		}
		during(10*time.Second, page1(0, 0))
		if n := during(30*time.Second, page1(0, 0)); n < 18 || n > 23 {
			t.Errorf("an engine idle again was asked %d times in 30 s, want about 20", n)
		}
	})
}

func TestAnEngineThatHangsIsGivenUpAndAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hang atomic.Bool
		hang.Store(true)
		p := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if hang.Load() {
				<-r.Context().Done()
				return
			}
			_, _ = fmt.Fprint(w, page1(1, 0))
		})
		got := newLog()
		s := New(Options{Observe: got.observe, Dial: p.dial})
		defer s.Close()
		s.Set([]Target{target("a", 0, "pod:8000")})
		time.Sleep(DefaultTimeout + 50*time.Millisecond)
		synctest.Wait()
		if st := s.Stats(); len(st) != 1 || st[0].Scrapes != 1 || st[0].Failures != 1 || st[0].LastError == nil || !st[0].LastSuccess.IsZero() {
			t.Fatalf("after the deadline: %+v", st)
		}
		hang.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		st := s.Stats()[0]
		if st.LastError != nil || st.Failures != 1 || st.Interval != DefaultBusy || time.Since(st.LastSuccess) > time.Second {
			t.Errorf("after it came back: %+v", st)
		}
		if len(got.take()) == 0 {
			t.Error("nothing was observed")
		}
	})
}

func TestWhatIsNotSetIsNotObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Millisecond)
			_, _ = fmt.Fprint(w, page1(1, 0))
		})
		got := newLog()
		s := New(Options{Observe: got.observe, Dial: p.dial})
		a, b, c := target("a", 0, "one:8000"), target("b", 0, "two:8000"), target("c", 0, "one:8000")
		s.Set([]Target{a, b})
		time.Sleep(5 * time.Second)
		// b's page goes, a's page goes on with another endpoint, in the middle of a question.
		s.Set([]Target{c})
		got.take()
		time.Sleep(5 * time.Second)
		seen := map[endpoint.ID]int{}
		for _, r := range got.take() {
			seen[r.id]++
		}
		if len(seen) != 1 || seen[c.ID] < 10 {
			t.Errorf("observed %v", seen)
		}
		if st := s.Stats(); len(st) != 1 || st[0].Scrapes < 40 {
			t.Errorf("the page that stayed began again: %+v", st)
		}
		s.Close()
		got.take()
		s.Set([]Target{a})
		time.Sleep(5 * time.Second)
		if n := len(got.take()); n != 0 {
			t.Errorf("%d readings after Close", n)
		}
	})
}

func TestAnswersThatCannotBeUsedAreCounted(t *testing.T) {
	cases := map[string]http.HandlerFunc{
		"another page": func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "go_goroutines 5\n") },
		"an error": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, page1(1, 1), http.StatusInternalServerError)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"an answer cut short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "999")
			_, _ = fmt.Fprint(w, page1(1, 1))
		},
		"too large an answer": func(w http.ResponseWriter, _ *http.Request) {
			chunk := []byte(strings.Repeat(page1(1, 1), 1000))
			for sent := 0; sent <= MaxPage; sent += len(chunk) {
				_, _ = w.Write(chunk)
			}
		},
	}
	for name, handler := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/metrics" {
						t.Errorf("asked for %s", r.URL.Path)
					}
					handler(w, r)
				})
				got := newLog()
				s := New(Options{Observe: got.observe, Dial: p.dial})
				defer s.Close()
				s.Set([]Target{target("a", 0, "pod:8000")})
				synctest.Wait()
				if st := s.Stats()[0]; st.Scrapes != 1 || st.Failures != 1 || st.LastError == nil {
					t.Errorf("got %+v", st)
				}
				if n := len(got.take()); n != 0 {
					t.Errorf("%d readings", n)
				}
			})
		})
	}
}

func TestModelsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		answer := `{"data":[{"id":"base","parent":null},{"id":"sql","parent":"base"}]}`
		p := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/models" {
				_, _ = fmt.Fprint(w, page1(0, 0))
				return
			}
			mu.Lock()
			defer mu.Unlock()
			_, _ = fmt.Fprint(w, answer)
		})
		change := func(to string) {
			mu.Lock()
			answer = to
			mu.Unlock()
			time.Sleep(12 * time.Second)
			synctest.Wait()
		}
		var told []string
		s := New(Options{Dial: p.dial, Models: func(id endpoint.ID, models []Model) {
			told = append(told, fmt.Sprint(id.Pod, models))
		}})
		s.Set([]Target{target("a", 0, "one:8000")})
		synctest.Wait()
		change(`{"data":[{"id":"sql","parent":"base"},{"id":"chat","parent":"base"},{"id":"base"}]}`)
		change(`{"data":[{"id":"base"},{"id":"chat","parent":"base"},{"id":"sql","parent":"base"}]}`) // the same
		change("503 is not JSON")
		change(`{"data":[{"id":"base","root":"/m"}]}`)
		st := s.Stats()
		s.Close()
		if diff := cmp.Diff([]string{"a[{base   0} {sql base  0}]", "a[{base   0} {chat base  0} {sql base  0}]", "a[{base  /m 0}]"}, told); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if st[0].ModelFailures == 0 || st[0].Failures != 0 {
			t.Errorf("got %+v", st[0])
		}
	})
}

func TestModels(t *testing.T) {
	long := strings.Repeat("x", maxModelRoot)
	for name, tc := range map[string]struct {
		answer string
		want   []Model
		ok     bool
	}{
		"a model and its adapters": {`{"object":"list","data":[{"id":"m","root":"/models/m","parent":null,"max_model_len":8192},` +
			`{"id":"b","root":"/lora/b","parent":"m","max_model_len":null},{"id":"a","parent":"m"},{"id":"b","parent":"m"}]}`,
			[]Model{{"a", "m", "", 0}, {"b", "m", "/lora/b", 0}, {"m", "", "/models/m", 8192}}, true},
		"an adapter without a base model": {`{"data":[{"id":"a","parent":""}]}`, []Model{{"a", "?", "", 0}}, true},
		"names out of bounds":             {`{"data":[{"id":"","parent":"m"},{"id":"` + strings.Repeat("x", 300) + `","parent":"m"}]}`, nil, true},
		"a base model out of bounds":      {`{"data":[{"id":"m"},{"id":"a","parent":"` + strings.Repeat("x", 300) + `"}]}`, []Model{{Name: "m"}}, true},
		"other fields, also nested ones":  {`{"object":{"data":[{"id":"x"}]},"data":[{"id":"m","permission":[{"id":"p"}]}],"more":1}`, []Model{{Name: "m"}}, true},
		"a list that is cut off":          {`{"data":[{"id":"m"}`, nil, false},
		"a list of another type":          {`{"data":{"id":"m"}}`, nil, false},
		"null":                            {`{"data":null}`, nil, false},
		"entries of another type":         {`{"data":[1]}`, nil, false},
		"a root out of bounds":            {`{"data":[{"id":"m","root":"` + long + `"}]}`, []Model{{Name: "m"}}, true},
		"a root of another type":          {`{"data":[{"id":"m","root":{"x":1},"max_model_len":7}]}`, []Model{{"m", "", "", 7}}, true},
		"a length of another type":        {`{"data":[{"id":"m","max_model_len":"8k"},{"id":"n","max_model_len":1e400}]}`, []Model{{Name: "m"}, {Name: "n"}}, true},
		"a length below zero":             {`{"data":[{"id":"m","max_model_len":-1}]}`, []Model{{Name: "m"}}, true},
		"no models":                       {`{"data":[]}`, nil, true},
		"no list":                         {`{"error":"Unauthorized"}`, nil, false},
		"no JSON":                         {`<html>`, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Models([]byte(tc.answer))
			if (err == nil) != tc.ok {
				t.Fatalf("got %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	many := make([]string, maxModels+1)
	for i := range many {
		many[i] = fmt.Sprintf(`{"id":"a%d","parent":"m"}`, i)
	}
	if got, err := Models([]byte(`{"data":[` + strings.Join(many, ",") + `]}`)); err != nil || len(got) != maxModels {
		t.Errorf("got %d names, %v", len(got), err)
	}
}

// TestAHostileListOfModelsTakesLittle: entries take a hundred times their bytes when they are decoded.
func TestAHostileListOfModelsTakesLittle(t *testing.T) {
	answer := []byte(`{"data":[` + strings.Repeat("{},", maxModelPage/3) + `{}]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Models(answer)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err != nil || took > 2*maxModelPage {
		t.Errorf("%d bytes take %d, %v", len(answer), took, err)
	}
}

// The same over real sockets: TCP and unix.
func TestRealSockets(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, page1(4, 2)) })
	tcp := httptest.NewServer(handler)
	defer tcp.Close()
	socket := filepath.Join(t.TempDir(), "engine.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	unix := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}}
	unix.Start()
	defer unix.Close()
	for name, tg := range map[string]Target{
		"tcp":  {ID: endpoint.ID{Pod: "a"}, Address: strings.TrimPrefix(tcp.URL, "http://")},
		"unix": {ID: endpoint.ID{Pod: "a"}, Address: "ignored:1", Socket: socket},
	} {
		t.Run(name, func(t *testing.T) {
			got := newLog()
			s := New(Options{Observe: got.observe})
			defer s.Close()
			s.Set([]Target{tg})
			select {
			case <-got.first:
			case <-time.After(30 * time.Second):
				t.Fatalf("nothing observed: %+v", s.Stats())
			}
			if r := got.take()[0]; r.id != tg.ID || r.m != (vllm.Metrics{Running: 4, Waiting: 2}) {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestAnsweredTellsDeadEnginesFromSlowOnes(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	asking := func(err error) error { return &url.Error{Op: "Get", URL: "http://a", Err: err} }
	for name, tc := range map[string]struct {
		err          error
		dead, silent bool
	}{
		"an answer":                      {nil, false, false},
		"another status":                 {&statusError{"/metrics", 404}, false, false},
		"an answer that ends early":      {fmt.Errorf("reading: %w", io.ErrUnexpectedEOF), false, false},
		"no answer in time":              {asking(context.DeadlineExceeded), false, true},
		"a refused connection":           {asking(dial), true, false},
		"no connection in time":          {asking(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}), true, false},
		"a connection closed, no answer": {asking(io.EOF), true, false},
		"a question that was called off": {asking(context.Canceled), false, false},
	} {
		got := unanswered(tc.err)
		if silent := errors.Is(got, ErrNoAnswer); silent != tc.silent || (got != nil && !silent) != tc.dead {
			t.Errorf("%s: %v, want dead %t, silent %t", name, got, tc.dead, tc.silent)
		}
	}
}

// TestABusyEngineGetsMoreTime: each question without an answer doubles the time for the next one, up to four times; any answer ends that.
func TestABusyEngineGetsMoreTime(t *testing.T) {
	s := New(Options{Timeout: time.Second})
	defer s.Close()
	p := newPage(where{address: "a"}, &s.options, func() {})
	silent := error(&url.Error{Op: "Get", URL: "http://a", Err: context.DeadlineExceeded})
	for i, step := range []struct {
		err  error
		next time.Duration
	}{{silent, 2 * time.Second}, {silent, 4 * time.Second}, {silent, 4 * time.Second}, {&statusError{"/metrics", 500}, time.Second}, {silent, 2 * time.Second}} {
		p.digest(nil, step.err)
		if got := p.nextTimeout(); got != step.next {
			t.Errorf("after question %d the next one has %s, want %s", i+1, got, step.next)
		}
	}
}

// TestALackOfDescriptorsSaysNothingOfAnEngine: neither that it can be connected to, nor that it cannot.
func TestALackOfDescriptorsSaysNothingOfAnEngine(t *testing.T) {
	for err, wanted := range map[error]bool{
		&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}: false,
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}:                         true,
	} {
		synctest.Test(t, func(t *testing.T) {
			dialed, told := 0, 0
			s := New(Options{
				Dial:     func(context.Context, string, string) (net.Conn, error) { dialed++; return nil, err },
				Answered: func(Target, error) { told++ },
			})
			defer s.Close()
			s.Set([]Target{target("a", 0, "pod:8000")})
			time.Sleep(time.Minute)
			synctest.Wait()
			if dialed == 0 || (told > 0) != wanted {
				t.Errorf("%v: asked %d times, told %d times, want any: %t", err, dialed, told, wanted)
			}
		})
	}
}
