package lifecycle

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is clients that ask without a pause, streamed and not, short and long, and count what they get.
type load struct {
	w         *world
	longest   int // tokens of an answer
	asked     atomic.Int64
	streamed  atomic.Int64
	answered  atomic.Int64
	slowest   atomic.Int64 // nanoseconds of the longest answer
	mu        sync.Mutex   // guards what follows
	failures  []failure
	addresses map[string][]string // of pickers, by model
	stop      context.CancelFunc
	done      sync.WaitGroup
}

// failure is a request that was not answered as it should.
type failure struct {
	began, failed time.Time
	what          string
	// begun is whether the client had got the head of an answer with status 200, and endpoint which one answered: "pod/rank", where the
	// pool has the policy explained, or "".
	begun    bool
	endpoint string
}

// explained is a policy by which answers say where they come from.
const explained = `
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: explained}
spec:
  targetRefs: [{name: m}]
  decisions: {answerHeaders: OnRequest}
`

// cutAt reports whether one of these pods was sending the answer when it failed. All other requests can be sent to another pod.
func (f failure) cutAt(pods ...string) bool {
	return f.begun && slices.Contains(pods, path.Base(path.Dir(f.endpoint)))
}

// String implements fmt.Stringer.
func (f failure) String() string {
	return fmt.Sprintf("%s after %s at %q, begun %t: %s", f.failed.Format("15:04:05.000"), f.failed.Sub(f.began).Round(time.Millisecond),
		f.endpoint, f.begun, f.what)
}

// tenantKey is what clients send. Pools without tenants ignore it.
const tenantKey = "a-key-of-the-lifecycle-tests-of-128-bits-or-more"

// startLoad begins with clients clients. They find the pickers as behind a Service: those that are ready.
func startLoad(w *world, clients, longest int) *load {
	return startLoadOf(w, clients, longest, []string{poolName}, func(string) []string { return w.proxies() })
}

// startLoadOf asks for several models, each client for one. proxies are the addresses where a model is served.
func startLoadOf(w *world, clients, longest int, models []string, proxies func(model string) []string) *load {
	ctx, cancel := context.WithCancel(w.Context())
	l := &load{w: w, longest: longest, stop: cancel, addresses: map[string][]string{}}
	for _, model := range models {
		l.addresses[model] = proxies(model)
	}
	l.done.Go(func() {
		for ctx.Err() == nil {
			for _, model := range models {
				if found := proxies(model); len(found) > 0 {
					l.mu.Lock()
					l.addresses[model] = found
					l.mu.Unlock()
				}
			}
			pause(ctx, 200*time.Millisecond)
		}
	})
	for i := range clients {
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		l.done.Go(func() {
			for ctx.Err() == nil {
				l.ask(rng, models[i%len(models)], i, i/len(models)%3 == 0)
				pause(ctx, time.Duration(rng.IntN(100))*time.Millisecond)
			}
		})
	}
	return l
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// end lets all requests end and returns what failed.
func (l *load) end() []failure {
	l.stop()
	l.done.Wait()
	return l.failures
}

// fail counts a failure; r is what was answered, or nil.
func (l *load) fail(began time.Time, r *http.Response, format string, args ...any) {
	f := failure{began: began, failed: time.Now(), what: fmt.Sprintf(format, args...)}
	if r != nil {
		f.begun, f.endpoint = r.StatusCode == http.StatusOK, r.Header.Get("x-kvasir-endpoint")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, f)
}

// ask sends one request, for a long answer or a short one, and checks that its entire answer arrives.
func (l *load) ask(rng *rand.Rand, model string, user int, long bool) {
	began := time.Now()
	l.mu.Lock()
	address := l.addresses[model][rng.IntN(len(l.addresses[model]))]
	l.mu.Unlock()
	tokens := 1 + rng.IntN(20)
	if long {
		tokens = l.longest/2 + rng.IntN(l.longest/2)
	}
	stream := rng.IntN(2) == 0
	request := map[string]any{
		"model": model, "max_tokens": tokens, "stream": stream, "ignore_eos": true,
		"prompt": strings.Repeat(fmt.Sprintf("The conversation of user %d. ", user), 20+rng.IntN(20)),
	}
	if stream {
		request["stream_options"] = map[string]any{"include_usage": true}
	}
	body, err := json.Marshal(request)
	if err != nil {
		panic(err)
	}
	l.asked.Add(1)
	question, err := http.NewRequest(http.MethodPost, "http://"+address+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	question.Header.Set("Content-Type", "application/json")
	question.Header.Set("X-Kvasir-Explain", "true")
	question.Header.Set("Authorization", "Bearer "+tenantKey)
	r, err := http.DefaultClient.Do(question)
	if err != nil {
		l.fail(began, nil, "%v", err)
		return
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(r.Body)
		l.fail(began, r, "status %d: %s", r.StatusCode, bytes.TrimSpace(text))
		return
	}
	var n int
	if stream {
		l.streamed.Add(1)
		n, err = readStream(r.Body)
	} else {
		var a answer
		err = json.NewDecoder(r.Body).Decode(&a)
		n = a.Usage.CompletionTokens
	}
	if err != nil || n != tokens {
		l.fail(began, r, "stream %v: %d of %d tokens: %v", stream, n, tokens, err)
		return
	}
	l.answered.Add(1)
	for took := int64(time.Since(began)); ; {
		if before := l.slowest.Load(); took <= before || l.slowest.CompareAndSwap(before, took) {
			return
		}
	}
}

// answer is what is read of one, or of a chunk of one.
type answer struct {
	Error any `json:"error"`
	Usage struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
}

// readStream reads a stream to its end, which must be as streams end, and returns the tokens that it counts itself.
func readStream(body io.Reader) (tokens int, err error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return tokens, nil
		}
		var a answer
		if err := json.Unmarshal([]byte(data), &a); err != nil || a.Error != nil {
			return tokens, fmt.Errorf("chunk %s: %w", data, err)
		}
		tokens = max(tokens, a.Usage.CompletionTokens)
	}
	if err := lines.Err(); err != nil {
		return tokens, err
	}
	return tokens, io.ErrUnexpectedEOF
}
