package replay

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const (
	wholeStream = `data: {"choices":[{"text":""}],"usage":null}

data: {"choices":[{"text":" one"}]}

: a comment
data: {"choices":[{"text":" two","finish_reason":"length"}]}

data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":32}}}

data: [DONE]

`
	chatStream = `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}

data: {"choices":[{"delta":{"content":" one"}}]}

data: {"choices":[{"delta":{"content":" two"},"finish_reason":"stop"}],"usage":{"prompt_tokens":40,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":32}}}

data: [DONE]

`
)

// headers that the proxy adds.
var headers = map[string]string{
	"x-kvasir-endpoint": "pod-1/0", "x-kvasir-strategy": "MarginalCost", "x-kvasir-prompt-tokens": "40",
	"x-kvasir-predicted-tokens": "32", "x-kvasir-confirmed-tokens": "16",
}

func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client := NewClient(server.URL, "MarginalCost")
	t.Cleanup(client.Close)
	return client
}

// respond writes the headers that are not set, but for those in without, and a body.
func respond(w http.ResponseWriter, body string, without ...string) {
	for name, value := range headers {
		if w.Header().Get(name) == "" {
			w.Header().Set(name, value)
		}
	}
	for _, name := range without {
		w.Header().Del(name)
	}
	_, _ = io.WriteString(w, body)
}

func TestAnswersOfBothRoutesAreRead(t *testing.T) {
	for name, stream := range map[string]string{"completion": wholeStream, "chat": chatStream} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) { respond(w, stream) })
			got, err := c.post(context.Background(), "/v1/x", "", []byte("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if got.ttft <= 0 || got.total < got.ttft {
				t.Errorf("first text after %v, end after %v", got.ttft, got.total)
			}
			got.ttft, got.total = 0, 0
			want := answer{text: " one two", pod: "pod-1", routed: 40, predicted: 32, confirmed: 16, prompt: 40, output: 2, cached: 32}
			if *got != want {
				t.Errorf("got %+v, want %+v", *got, want)
			}
		})
	}
}

func TestWithoutAStrategyEachIsTaken(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { respond(w, wholeStream) }))
	t.Cleanup(server.Close)
	client := NewClient(server.URL, "")
	t.Cleanup(client.Close)
	if _, err := client.post(context.Background(), "/v1/x", "", nil); err != nil {
		t.Error(err)
	}
}

func TestTheFirstTextEndsTheWaitAndNotTheFirstEvent(t *testing.T) {
	const pause = 20 * time.Millisecond
	first, rest, _ := strings.Cut(wholeStream, "\n\n")
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		respond(w, first+"\n\n")
		_ = http.NewResponseController(w).Flush()
		time.Sleep(pause)
		_, _ = io.WriteString(w, rest)
	})
	got, err := c.post(context.Background(), "/v1/x", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.ttft < pause {
		t.Errorf("first text after %v, was sent after %v", got.ttft, pause)
	}
}

func TestWhatIsNoWholeAnswerIsAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"a refusal": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"message":"no endpoint"}}`, http.StatusServiceUnavailable)
		}, "status 503: {\"error\":{\"message\":\"no endpoint\"}}"},
		"no endpoint named": {func(w http.ResponseWriter, _ *http.Request) { respond(w, wholeStream, "X-Kvasir-Endpoint") }, "names no endpoint"},
		"another strategy": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Kvasir-Strategy", "RoundRobin")
			respond(w, wholeStream)
		}, `routed by "RoundRobin", not by "MarginalCost"`},
		"no prediction": {func(w http.ResponseWriter, _ *http.Request) { respond(w, wholeStream, "X-Kvasir-Predicted-Tokens") },
			`X-Kvasir-Predicted-Tokens is ""`},
		"no usage": {func(w http.ResponseWriter, _ *http.Request) {
			respond(w, strings.Replace(wholeStream, `"usage":{`, `"other":{`, 1))
		}, "no usage"},
		"no text": {func(w http.ResponseWriter, _ *http.Request) {
			respond(w, strings.ReplaceAll(wholeStream, `"text":" `, `"other":" `))
		}, "no text"},
		"an abort": {func(w http.ResponseWriter, _ *http.Request) {
			respond(w, strings.Replace(wholeStream, `"length"`, `"abort"`, 1))
		}, `finish reason is "abort"`},
		"no finish reason": {func(w http.ResponseWriter, _ *http.Request) {
			respond(w, strings.Replace(wholeStream, `"finish_reason":"length"`, `"finish_reason":null`, 1))
		}, `finish reason is ""`},
		"an end before the end mark": {func(w http.ResponseWriter, _ *http.Request) {
			respond(w, strings.TrimSuffix(wholeStream, "data: [DONE]\n\n"))
		}, "without its end mark"},
		"an error in the stream": {func(w http.ResponseWriter, _ *http.Request) {
			respond(w, `data: {"error":{"message":"engine died"}}`+"\n\n")
		}, "engine died"},
		"an event that is no JSON": {func(w http.ResponseWriter, _ *http.Request) { respond(w, "data: {\n\n") }, "reading an event"},
		"a connection cut": {func(w http.ResponseWriter, _ *http.Request) {
			respond(w, "data: {}\n\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "reading the stream"},
	} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, tc.handler)
			_, err := c.post(context.Background(), "/v1/x", "", nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %q", err, tc.want)
			}
		})
	}
}

func FuzzReadStream(f *testing.F) {
	f.Add(wholeStream)
	f.Add(chatStream)
	f.Add("data: null\ndata:[DONE]")
	f.Fuzz(func(t *testing.T, stream string) {
		var a answer
		if err := a.readStream(strings.NewReader(stream), time.Now()); err == nil && a.text == "" {
			t.Error("an answer without text is whole")
		}
	})
}

func ExampleCounters() {
	var c Counters
	c.Sent.Add(2)
	c.Done.Add(1)
	fmt.Println(c.Sent.Load()-c.Done.Load(), "in flight")
	// Output: 1 in flight
}
