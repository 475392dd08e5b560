package envoy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// request is one request for a completion. Its id is the length of its prompt, so that counting the prompt identifies it.
type request struct {
	tokens int // of the prompt
	stream bool
	model  string // "m" where it is empty
	output int    // tokens to generate; 4 where it is 0
	pad    int    // bytes in front of the prompt
}

var lengths atomic.Int64

// newRequest is a request whose id no other has in this run.
func newRequest(stream bool) request {
	return request{tokens: int(100 + lengths.Add(1)), stream: stream}
}

func (r request) id() string { return strconv.Itoa(r.tokens) }

func (r request) body() string {
	model, output := r.model, r.output
	if model == "" {
		model = "m"
	}
	if output == 0 {
		output = 4
	}
	ids := make([]string, r.tokens)
	for i := range ids {
		ids[i] = strconv.Itoa(1 + i%1000)
	}
	more := ""
	if r.stream {
		more = `,"stream":true,"stream_options":{"include_usage":true}`
	}
	return fmt.Sprintf(`{"model":%q,"user":%q,"max_tokens":%d,"prompt":[%s]%s}`, model, strings.Repeat("x", r.pad), output, strings.Join(ids, ","), more)
}

// reply is what the client has got.
type reply struct {
	status int
	body   string
	err    error // of reading the answer, or of asking
	usage  usage
}

type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	Completion int `json:"completion_tokens"`
}

// whole reports whether the answer is a complete completion.
func (r reply) whole(stream bool) bool {
	return r.err == nil && r.status == http.StatusOK && (!stream && strings.Contains(r.body, `"choices"`) || stream && strings.Contains(r.body, "data: [DONE]"))
}

func (r reply) String() string { return fmt.Sprintf("status %d, %v: %.300s", r.status, r.err, r.body) }

// do sends a request. It calls first at the first piece of the answer, unless first is nil.
func do(c *http.Client, r request, first func()) reply {
	q, err := http.NewRequest(http.MethodPost, "http://envoy/v1/completions", strings.NewReader(r.body()))
	if err != nil {
		return reply{err: err}
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set(idHeader, r.id())
	q.Header.Set(destinationKey, "127.0.0.1:1") // clients name no destination
	return send(c, q, first)
}

func send(c *http.Client, q *http.Request, first func()) reply {
	a, err := c.Do(q)
	if err != nil {
		return reply{err: err}
	}
	defer a.Body.Close()
	out := reply{status: a.StatusCode}
	body := bufio.NewReader(a.Body)
	if _, err := body.Peek(1); err == nil && first != nil {
		first()
	}
	text, err := io.ReadAll(body)
	out.body, out.err = string(text), err
	out.usage = usageOf(text)
	return out
}

// usageOf finds the usage in an answer or in the last event of a stream that has one.
func usageOf(text []byte) usage {
	var found struct{ Usage *usage }
	for part := range bytes.Lines(text) {
		part = bytes.TrimPrefix(bytes.TrimSpace(part), []byte("data: "))
		if bytes.Contains(part, []byte(`"usage":{`)) {
			_ = json.Unmarshal(part, &found)
		}
	}
	if found.Usage == nil {
		return usage{}
	}
	return *found.Usage
}

// ask sends a request that must be answered in one piece.
func ask(t *testing.T, c *http.Client, r request) reply {
	t.Helper()
	a := do(c, r, nil)
	if !a.whole(r.stream) {
		t.Fatalf("request %s, stream %v: %v", r.id(), r.stream, a)
	}
	return a
}
