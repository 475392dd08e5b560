package real

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// request is one request of a client.
type request struct {
	shape string // its kind, for the totals
	path  string
	body  object
	key   string // that the client shows, if any
	raw   string // the body, where it is no object that can be encoded
}

// with returns the request with other fields in its body; nil removes one.
func (r request) with(fields object) request {
	r.body = maps.Clone(r.body)
	for key, value := range fields {
		if r.body[key] = value; value == nil {
			delete(r.body, key)
		}
	}
	return r
}

// chat is a chat of two output tokens that is answered at once.
func chat(shape string, messages ...object) request {
	return request{shape: shape, path: "/v1/chat/completions", body: object{"model": "m", "messages": messages, "max_tokens": 2}}
}

// completion is a completion of two output tokens; prompt is a text, ids, or a list of either.
func completion(shape string, prompt any) request {
	return request{shape: shape, path: "/v1/completions", body: object{"model": "m", "prompt": prompt, "max_tokens": 2}}
}

// say is a message.
func say(role string, content any) object { return object{"role": role, "content": content} }

// text is about n tokens of prose that begins with a name, so that it shares no block with texts of other names.
func text(name string, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", name)
	for i := 0; b.Len() < 5*n; i++ {
		fmt.Fprintf(&b, "Sentence %d of %s is about %s. ", i, name, topics[(i*7+len(name))%len(topics)])
	}
	return b.String()
}

var topics = []string{"rivers and bridges", "the price of bread", "Käse, Brot und Wein", "lock-free queues", "天気", "x := y + 1", "a long walk home"}

// ids makes a prompt of n token ids that shares no block with other families.
func ids(family, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = 1000 + (family*7919+i*31)%90_000
	}
	return out
}

// answer is what a client got.
type answer struct {
	request request
	id      string    // that the engine has for the request, or begins its own with
	sent    time.Time // by the client
	status  int
	pod     string // that served
	tokens  string // where the picker's ids came from: exact, approximate, ...
	// prompt tokens as the picker and as the engine counted them; the engine's are -1 if it did not say.
	promptPicker, promptEngine int
	predicted, confirmed       int
	delivered                  int // cached prompt tokens by the engine, -1 if it did not say
	header                     http.Header
	body                       string
	events                     int // server-sent
	err                        error
}

// exact returns nil if the request was answered and the picker predicted what the engine found in its cache.
func (a answer) exact() error {
	if a.err != nil || a.status != http.StatusOK {
		return fmt.Errorf("%s: status %d, error %w: %.600s", a.request.shape, a.status, a.err, a.body)
	}
	if a.delivered < 0 {
		return fmt.Errorf("%s: the engine did not say what it found in its cache: %.600s", a.request.shape, a.body)
	}
	if a.predicted != a.delivered {
		return fmt.Errorf("%s: predicted %d (confirmed %d), delivered %d of %d prompt tokens, tokens %q with %d counted",
			a.request.shape, a.predicted, a.confirmed, a.delivered, a.promptEngine, a.tokens, a.promptPicker)
	}
	return a.sameLength()
}

// sameLength returns nil if the picker, with the tokens of the prompt or of all prompts, counts as many as the engine.
func (a answer) sameLength() error {
	if source, _, _ := strings.Cut(a.tokens, ";"); source == "approximate" || source == "none" || a.promptEngine < 0 || a.promptPicker == a.promptEngine {
		return nil
	}
	return fmt.Errorf("%s: the picker counts %d prompt tokens, the engine %d; tokens %q", a.request.shape, a.promptPicker, a.promptEngine, a.tokens)
}

// failedInStream reports whether a stream carries an error, or ends without one event of its answer.
func (a answer) failedInStream() bool {
	return strings.Contains(a.body, `data: {"error"`) || a.request.body["stream"] == true && a.events < 2
}

// send sends a request through the picker, reads the entire answer and counts it in the totals.
func (p *picker) send(r request) answer {
	a := p.try(context.Background(), r)
	p.count(a)
	return a
}

// count takes an answer into the picker's totals and, unless the case is known to fail, into those of the run.
func (p *picker) count(a answer) {
	p.seen.add(a, p.config.files)
	if !p.uncounted {
		run.totals.add(a, p.config.files)
	}
}

// try is send without counting, for requests whose answers are not judged.
func (p *picker) try(ctx context.Context, r request) answer {
	return post(ctx, p.proxy, r)
}

// post sends a request to a server.
func post(ctx context.Context, base string, r request) answer {
	a := answer{request: r, promptPicker: -1, promptEngine: -1, delivered: -1}
	raw, err := json.Marshal(r.body)
	if r.raw != "" {
		raw = []byte(r.raw)
	}
	if err != nil {
		a.err = fmt.Errorf("encoding a request: %w", err)
		return a
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+r.path, bytes.NewReader(raw))
	if err != nil {
		a.err = fmt.Errorf("making a request: %w", err)
		return a
	}
	request.Header.Set("Content-Type", "application/json")
	a.id, a.sent = fmt.Sprintf("%016x", rand.Uint64()), time.Now()
	request.Header.Set("X-Request-Id", a.id)
	if r.key != "" {
		request.Header.Set("Authorization", "Bearer "+r.key)
	}
	response, err := client.Do(request)
	if err != nil {
		a.err = fmt.Errorf("sending a request: %w", err)
		return a
	}
	defer func() { _ = response.Body.Close() }()
	a.status, a.header = response.StatusCode, response.Header
	a.pod, _, _ = strings.Cut(a.header.Get("x-kvasir-endpoint"), "/")
	a.tokens = a.header.Get("x-kvasir-tokens")
	a.predicted, _ = strconv.Atoi(a.header.Get("x-kvasir-predicted-tokens"))
	a.confirmed, _ = strconv.Atoi(a.header.Get("x-kvasir-confirmed-tokens"))
	if n, err := strconv.Atoi(a.header.Get("x-kvasir-prompt-tokens")); err == nil {
		a.promptPicker = n
	}
	a.err = a.read(response.Body)
	return a
}

// read reads a body: JSON, or a stream of events.
func (a *answer) read(body io.Reader) error {
	var all strings.Builder
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadString('\n')
		all.WriteString(line)
		data, streamed := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if streamed {
			a.events++
		}
		a.usage([]byte(data))
		if err == io.EOF {
			break
		}
		if err != nil {
			a.body = all.String()
			return fmt.Errorf("reading an answer: %w", err)
		}
	}
	a.body = all.String()
	if a.events == 0 {
		a.usage([]byte(a.body))
	}
	return nil
}

// usage takes the counts of an answer, in the form of chats, of responses, or of messages.
func (a *answer) usage(raw []byte) {
	type counts struct {
		Prompt    *int `json:"prompt_tokens"`
		Input     *int `json:"input_tokens"`
		CacheRead *int `json:"cache_read_input_tokens"`     // of Messages, whose input_tokens are
		CacheNew  *int `json:"cache_creation_input_tokens"` // without both
		Chat      *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Responses *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
	var message struct {
		Usage    *counts
		Response struct{ Usage *counts }
		Message  struct{ Usage *counts }
	}
	if json.Unmarshal(raw, &message) != nil {
		return
	}
	for _, u := range []*counts{message.Usage, message.Response.Usage, message.Message.Usage} {
		switch {
		case u == nil:
			continue
		case u.Prompt != nil: // until 0.24 the details are absent where nothing was cached
			a.promptEngine, a.delivered = *u.Prompt, 0
		case u.Input != nil:
			a.promptEngine = *u.Input
			for _, cached := range []*int{u.CacheRead, u.CacheNew} {
				if cached != nil {
					a.promptEngine += *cached
				}
			}
		}
		switch {
		case u.Chat != nil && u.Chat.Cached != nil:
			a.delivered = *u.Chat.Cached
		case u.Responses != nil && u.Responses.Cached != nil:
			a.delivered = *u.Responses.Cached
		case u.CacheRead != nil:
			a.delivered = *u.CacheRead
		}
	}
}
