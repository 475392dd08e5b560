package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
)

// What must never be seen in a log or a metric: it stands in all prompts, as text or as ids.
const secretText = "unmistakable heron"

var (
	secretIDs = []int{31337, 27182}
	secret    = regexp.MustCompile(`(?i)heron|31337[^0-9]{1,3}27182`)
)

const (
	clients = 8
	// redials of a connection that nothing listened for: as a Service needs while it learns that a pod is gone.
	redials = 40
)

// load is clients that ask without a pause, streamed and not, short and long, text and ids, each request on a connection of
// its own, and count what they get.
type load struct {
	http     *http.Client
	url      string
	model    string // that is asked for
	asked    atomic.Int64
	mu       sync.Mutex // guards failures
	failures []string
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// newLoad asks nothing by itself yet, at a base URL.
func newLoad(url string) *load {
	return &load{url: url, model: poolName, http: &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: redial}}}
}

// startLoad begins to ask for a model at a base URL.
func startLoad(ctx context.Context, url, model string) *load {
	l := newLoad(url)
	l.model = model
	ctx, l.stop = context.WithCancel(ctx)
	for user := range clients {
		rng := rand.New(rand.NewPCG(uint64(user), 1))
		l.done.Go(func() {
			for ctx.Err() == nil {
				l.asked.Add(1)
				if err := l.ask(rng, user); err != nil {
					l.mu.Lock()
					l.failures = append(l.failures, time.Now().Format("15:04:05.000 ")+err.Error())
					l.mu.Unlock()
				}
				pause(ctx, time.Duration(rng.IntN(100))*time.Millisecond)
			}
		})
	}
	return l
}

// redial dials again when nothing has listened, before anything was sent.
func redial(ctx context.Context, network, address string) (c net.Conn, err error) {
	d := net.Dialer{Timeout: 3 * time.Second}
	for range redials {
		if c, err = d.DialContext(ctx, network, address); err == nil || ctx.Err() != nil {
			return c, err
		}
		pause(ctx, 50*time.Millisecond)
	}
	return nil, err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// end lets all requests end and returns what failed.
func (l *load) end() []string {
	l.stop()
	l.done.Wait()
	GinkgoWriter.Printf("%d requests, %d failed\n%s\n", l.asked.Load(), len(l.failures), strings.Join(l.failures, "\n"))
	return l.failures
}

// ask sends a request and checks that its entire answer arrives.
func (l *load) ask(rng *rand.Rand, user int) error {
	tokens := 1 + rng.IntN(20)
	if rng.IntN(5) == 0 {
		tokens = 100 + rng.IntN(100)
	}
	text := strings.Repeat(fmt.Sprintf("The %s of user %d. ", secretText, user), 20+rng.IntN(20))
	stream := rng.IntN(2) == 0
	request, path := map[string]any{"model": l.model, "max_tokens": tokens, "stream": stream, "ignore_eos": true}, "/v1/completions"
	switch rng.IntN(3) {
	case 0:
		path = "/v1/chat/completions"
		request["messages"] = []map[string]string{{"role": "user", "content": text}}
	case 1:
		ids := make([]int, 100+rng.IntN(200))
		for i := range ids {
			ids[i] = secretIDs[i%2]
		}
		ids[20] = user // the conversations part here
		request["prompt"] = ids
	default:
		request["prompt"] = text
	}
	if stream {
		request["stream_options"] = map[string]any{"include_usage": true}
	}
	a, err := l.post(path, request)
	if err == nil && a.Usage.CompletionTokens != tokens {
		err = fmt.Errorf("%s, stream %v: %d of %d tokens", path, stream, a.Usage.CompletionTokens, tokens)
	}
	return err
}

// answer is what is read of one, or of a chunk of one.
type answer struct {
	Error any `json:"error"`
	Usage struct {
		CompletionTokens int `json:"completion_tokens"`
		PromptTokens     int `json:"prompt_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// post returns an answer, of a stream the sum of its chunks.
func (l *load) post(path string, request map[string]any) (answer, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return answer{}, err
	}
	r, err := l.http.Post(l.url+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(r.Body)
		return answer{}, fmt.Errorf("%s: status %d: %s", path, r.StatusCode, bytes.TrimSpace(text))
	}
	var a answer
	if request["stream"] == true {
		a, err = readStream(r.Body)
	} else {
		err = json.NewDecoder(r.Body).Decode(&a)
	}
	if err != nil {
		err = fmt.Errorf("%s %w", begun, err)
	}
	return a, err
}

// begun is in the failures of requests whose answers had begun. No others can be lost with an engine: they are sent to another one.
const begun = "an answer that had begun:"

// readStream reads a stream to its end, which must be as streams end.
func readStream(body io.Reader) (last answer, err error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			return last, nil
		default:
			var a answer
			if err := json.Unmarshal([]byte(data), &a); err != nil || a.Error != nil {
				return last, fmt.Errorf("chunk %s: %w", data, err)
			}
			if a.Usage.CompletionTokens >= last.Usage.CompletionTokens {
				last = a
			}
		}
	}
	if err := lines.Err(); err != nil {
		return last, err
	}
	return last, io.ErrUnexpectedEOF
}
