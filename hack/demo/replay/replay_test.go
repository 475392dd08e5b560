package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/hack/demo/summary"
	"github.com/kvasir-dev/kvasir/internal/sim/chat"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// request is what an engine is asked.
type request struct {
	Model         string    `json:"model"`
	Prompt        []uint32  `json:"prompt"`
	Messages      []message `json:"messages"`
	MaxTokens     int       `json:"max_tokens"`
	Stream        bool      `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	path string
}

// recorder answers everything and keeps what it was asked.
type recorder struct {
	mu   sync.Mutex
	got  []request // guarded by mu
	fail func(r *request) bool
}

func (rec *recorder) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	var r request
	body, err := io.ReadAll(in.Body)
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.path = in.URL.Path
	rec.mu.Lock()
	rec.got = append(rec.got, r)
	n := len(rec.got)
	rec.mu.Unlock()
	if rec.fail != nil && rec.fail(&r) {
		http.Error(w, "told to fail", http.StatusBadGateway)
		return
	}
	if r.Messages != nil {
		respond(w, strings.Replace(chatStream, " two", fmt.Sprintf(" answer %d", n), 1))
		return
	}
	respond(w, wholeStream)
}

func smallPlan(t *testing.T, requests int, c chat.Config) *Plan {
	t.Helper()
	list := make([]trace.Request, requests)
	for i := range list {
		list[i] = trace.Request{Timestamp: 0, Input: 600 + i, Output: 3 + i, Blocks: []int{0, 1 + i}}
	}
	script, err := chat.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &Plan{Model: "a \"model\"", Trace: list, Arrivals: trace.Arrivals(list), Chat: script, SpeedUp: 1000}
}

func TestEverythingIsSentAsItSays(t *testing.T) {
	p := smallPlan(t, 20, chat.Default(4, time.Minute))
	rec := &recorder{}
	client := serve(t, rec.ServeHTTP)
	var counters Counters
	samples, err := p.Run(context.Background(), client, &counters)
	if err != nil {
		t.Fatal(err)
	}
	want := p.Requests()
	if len(samples) != want || counters.Sent.Load() != int64(want) || counters.Done.Load() != int64(want) || counters.Failed.Load() != 0 {
		t.Errorf("%d samples, %d sent, %d done, %d failed of %d", len(samples), counters.Sent.Load(), counters.Done.Load(), counters.Failed.Load(), want)
	}
	if s := summary.Of(samples); s.Errors != 0 || s.Delivered != 32*want || s.PerPod["pod-1"] != want {
		t.Errorf("summary is %+v", s)
	}
	var prompts [][]uint32
	talks := map[string][][]message{} // by first user message
	for _, r := range rec.got {
		if r.Model != p.Model || !r.Stream || !r.StreamOptions.IncludeUsage {
			t.Fatalf("asked for %+v", r)
		}
		switch r.path {
		case "/v1/completions":
			prompts = append(prompts, r.Prompt)
			if r.MaxTokens != len(r.Prompt)-597 {
				t.Errorf("a prompt of %d tokens asks for %d", len(r.Prompt), r.MaxTokens)
			}
		case "/v1/chat/completions":
			talks[r.Messages[1].Content] = append(talks[r.Messages[1].Content], r.Messages)
		default:
			t.Errorf("asked at %s", r.path)
		}
	}
	slices.SortFunc(prompts, func(a, b []uint32) int { return len(a) - len(b) })
	for i, q := range p.Trace {
		if diff := cmp.Diff(trace.AppendTokens(nil, q.Blocks, q.Input), prompts[i]); diff != "" {
			t.Errorf("prompt %d: %s", i, diff)
		}
	}
	for _, s := range p.Chat.Sessions {
		checkTalk(t, p.Chat.System, &s, talks[s.Turns[0].User])
	}
}

// checkTalk compares the requests of a session with its script: every request is the one before with its answer and
// the next turn.
func checkTalk(t *testing.T, system string, s *chat.Session, requests [][]message) {
	t.Helper()
	if len(requests) != len(s.Turns) {
		t.Fatalf("%d requests for %d turns", len(requests), len(s.Turns))
	}
	history := []message{{"system", system}}
	for i, got := range requests {
		if i > 0 {
			reply := got[len(got)-2]
			if reply.Role != "assistant" || !strings.HasPrefix(reply.Content, " one answer ") {
				t.Errorf("turn %d answers to %+v", i, reply)
			}
			history = append(history, reply)
		}
		history = append(history, message{"user", s.Turns[i].User})
		if diff := cmp.Diff(history, got); diff != "" {
			t.Errorf("turn %d: %s", i, diff)
		}
	}
}

func TestAFailedTurnEndsItsSessionAndNoOther(t *testing.T) {
	c := chat.Default(3, 10*time.Minute)
	c.MeanThink = time.Second
	c.MinTurns, c.MaxTurns = 4, 4
	p := smallPlan(t, 0, c)
	victim := p.Chat.Sessions[1].Turns[0].User
	rec := &recorder{fail: func(r *request) bool { return r.Messages[1].Content == victim && len(r.Messages) == 4 }}
	samples, err := p.Run(context.Background(), serve(t, rec.ServeHTTP), &Counters{})
	if err != nil {
		t.Fatal(err)
	}
	s := summary.Of(samples)
	if s.Requests != 4+2+4 || s.Errors != 1 || !strings.Contains(s.FirstError, "status 502: told to fail") {
		t.Errorf("%d requests, %d errors (%s), want 10 and 1", s.Requests, s.Errors, s.FirstError)
	}
}

func TestArrivalsDoNotWaitForAnswers(t *testing.T) {
	// Every request is held until all have arrived.
	p := smallPlan(t, 50, chat.Default(0, 0))
	var all sync.WaitGroup
	all.Add(len(p.Trace))
	client := serve(t, func(w http.ResponseWriter, in *http.Request) {
		_, _ = io.Copy(io.Discard, in.Body)
		all.Done()
		all.Wait()
		respond(w, wholeStream)
	})
	samples, err := p.Run(context.Background(), client, &Counters{})
	if err != nil {
		t.Fatal(err)
	}
	if s := summary.Of(samples); s.Errors != 0 || s.Requests != len(p.Trace) {
		t.Errorf("%d requests, %d errors: %s", s.Requests, s.Errors, s.FirstError)
	}
}

func TestACancelledRunSaysWhyAndLeavesNothing(t *testing.T) {
	p := smallPlan(t, 5, chat.Default(2, 24*time.Hour))
	p.Arrivals[4] = 24 * time.Hour
	cause := errors.New("a pod has died")
	ctx, cancel := context.WithCancelCause(context.Background())
	client := serve(t, func(_ http.ResponseWriter, in *http.Request) {
		_, _ = io.Copy(io.Discard, in.Body)
		cancel(cause)
		<-in.Context().Done()
	})
	samples, err := p.Run(ctx, client, &Counters{})
	if !errors.Is(err, cause) || samples != nil {
		t.Errorf("%d samples, error %v", len(samples), err)
	}
}
