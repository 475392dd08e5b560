package bench

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// answering serves one streamed text.
func answering(t *testing.T, status int, text string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer key" || r.URL.Path != "/v1/chat/completions" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("X-Kvasir-Strategy", "RoundRobin")
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	c := NewClient(s.URL+"/", "key")
	t.Cleanup(c.Close)
	return c
}

const (
	hello  = `data: {"choices":[{"delta":{"content":"Hel"}}]}` + "\n\n"
	thinks = `data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}` + "\n\n"
	lo     = `data: {"choices":[{"delta":{"content":"lo"},"finish_reason":"length"}]}` + "\n\n"
	usage  = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}` + "\n\n"
	end    = "data: [DONE]\n\n"
)

func TestAnswersAreRead(t *testing.T) {
	for name, tc := range map[string]struct {
		text           string
		prompt, output int
		gaps           int
	}{
		"with usage":                        {": comment\n\n" + hello + lo + usage + end, 7, 5, 1},
		"without usage, events are counted": {hello + lo + end, 0, 2, 1},
		"thoughts are tokens, but no text":  {thinks + hello + lo + end, 0, 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := answering(t, 200, tc.text).post(t.Context(), []byte("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if a.text != "Hello" || a.prompt != tc.prompt || a.output != tc.output || len(a.gaps) != tc.gaps ||
				a.ttft <= 0 || a.total < a.ttft || a.strategy != "RoundRobin" {
				t.Errorf("answer %+v", a)
			}
		})
	}
}

func TestWhatIsNoAnswerIsAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		status     int
		text, want string
	}{
		"a refusal":           {503, "no endpoint", "status 503: no endpoint"},
		"a cut stream":        {200, hello, "without its end mark"},
		"an abort":            {200, strings.Replace(hello+lo, "length", "abort", 1) + end, `finish reason is "abort"`},
		"no finish reason":    {200, hello + end, `finish reason is ""`},
		"no text":             {200, end, "no text"},
		"an error on the way": {200, hello + `data: {"error":{"message":"engine died"}}` + "\n\n" + end, "engine died"},
		"no JSON":             {200, "data: {\n\n", "reading an event"},
		"an endless line":     {200, "data: " + strings.Repeat("x", maxEvent+1), "reading the stream"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := answering(t, tc.status, tc.text).post(t.Context(), []byte("{}"))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestAskReturnsTheStrategy(t *testing.T) {
	got, err := answering(t, 200, hello+lo+end).Ask(t.Context(), "m")
	if err != nil || got != "RoundRobin" {
		t.Errorf("strategy %q, error %v", got, err)
	}
}
