package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/chat"
)

// Load describes the chats of a turn: several applications, each with a system prompt of its own that its sessions share.
type Load struct {
	Model string
	// Length is how long sessions begin. Answers that run then are waited for.
	Length time.Duration
	// Apps is the number of applications, Sessions the number of sessions that begin in a minute, of all of them.
	Apps     int
	Sessions float64
	// SystemWords is the length of a system prompt, in words.
	SystemWords int
	// MaxAnswer bounds an answer, in tokens; answers have a quarter of it to all of it.
	MaxAnswer int
	// Think is the mean time between an answer's end and the next turn of its session.
	Think time.Duration
}

// Check returns an error for a load that cannot be made.
func (l *Load) Check() error {
	switch {
	case l.Length < time.Second || l.Length > 24*time.Hour:
		return fmt.Errorf("a turn of %v: want 1s to 24h", l.Length)
	case l.Apps < 1 || l.Apps > 1000:
		return fmt.Errorf("%d applications: want 1 to 1000", l.Apps)
	case !(l.Sessions > 0 && l.Sessions <= 100_000):
		return fmt.Errorf("%g sessions a minute: want more than 0, at most 100000", l.Sessions)
	case l.SystemWords < 0 || l.SystemWords > 100_000:
		return fmt.Errorf("system prompts of %d words: want 0 to 100000", l.SystemWords)
	case l.MaxAnswer < 4 || l.MaxAnswer > 100_000:
		return fmt.Errorf("answers of %d tokens: want 4 to 100000", l.MaxAnswer)
	case l.Think < 0 || l.Think > time.Hour:
		return fmt.Errorf("thinking for %v: want 0s to 1h", l.Think)
	}
	return nil
}

// scripts writes the chats of a turn. Other seeds make other texts from the first word on, so that no turn finds what another
// has left in the caches.
func (l *Load) scripts(seed uint64) ([]*chat.Script, error) {
	all := make([]*chat.Script, l.Apps)
	sessions := max(1, int(l.Sessions*l.Length.Minutes()/float64(l.Apps)+0.5))
	for i := range all {
		c := chat.Default(sessions, l.Length)
		c.SystemWords, c.MeanThink, c.Seed = l.SystemWords, l.Think, seed<<16+uint64(i)+1
		c.MinAnswer, c.MaxAnswer = max(1, l.MaxAnswer/4), l.MaxAnswer
		script, err := chat.New(c)
		if err != nil {
			return nil, err
		}
		// The applications' sessions begin one after the other, not all at once.
		shift := l.Length * time.Duration(2*i-l.Apps+1) / time.Duration(2*sessions*l.Apps)
		for j := range script.Sessions {
			script.Sessions[j].Start = max(0, script.Sessions[j].Start+shift)
		}
		all[i] = script
	}
	return all, nil
}

// Sample is one request as the client saw it.
type Sample struct {
	// Sent is when it was sent, since the turn's beginning.
	Sent time.Duration `json:"sentNanoseconds"`
	// Err is the reason of a failure; nothing below is set then.
	Err string `json:"error,omitempty"`
	// TTFT is the time to the first text, Total to the end of the answer.
	TTFT  time.Duration `json:"ttftNanoseconds"`
	Total time.Duration `json:"totalNanoseconds"`
	// Prompt and Output are the engine's count of tokens.
	Prompt int `json:"promptTokens"`
	Output int `json:"outputTokens"`

	gaps []time.Duration
}

// PerToken is the mean time of an output token after the first; 0 for an answer of one token.
func (s *Sample) PerToken() time.Duration {
	if s.Output < 2 {
		return 0
	}
	return (s.Total - s.TTFT) / time.Duration(s.Output-1)
}

// Progress follows a turn; any goroutine can read it.
type Progress struct{ Sent, Done, Failed atomic.Int64 }

// player is one turn's load under way.
type player struct {
	client   *Client
	model    string
	start    time.Time
	progress *Progress

	mu      sync.Mutex
	samples []Sample // guarded by mu
}

// Play sends the chats of a seed and returns a sample of each request when the last answer has ended. It returns early, with the
// cause, when ctx ends. A session ends with its first failed turn.
func (l *Load) Play(ctx context.Context, client *Client, seed uint64, progress *Progress) ([]Sample, error) {
	scripts, err := l.scripts(seed)
	if err != nil {
		return nil, err
	}
	p := &player{client: client, model: l.Model, start: time.Now(), progress: progress}
	var sessions sync.WaitGroup
	for _, script := range scripts {
		for i := range script.Sessions {
			sessions.Go(func() { p.converse(ctx, script.System, &script.Sessions[i]) })
		}
	}
	sessions.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return p.samples, nil
}

// converse sends the turns of a session, each some time after the answer to the one before.
func (p *player) converse(ctx context.Context, system string, s *chat.Session) {
	at := s.Start
	messages := []message{{Role: "system", Content: system}}
	for i := range s.Turns {
		turn := &s.Turns[i]
		if i > 0 {
			at = time.Since(p.start) + turn.Think
		}
		if !p.wait(ctx, at) {
			return
		}
		messages = append(messages, message{Role: "user", Content: turn.User})
		text, ok := p.send(ctx, messages, turn.MaxTokens)
		if !ok {
			return
		}
		messages = append(messages, message{Role: "assistant", Content: text})
	}
}

// send sends one request and records it. It returns the answer's text, and false if the request failed.
func (p *player) send(ctx context.Context, messages []message, maxTokens int) (string, bool) {
	p.progress.Sent.Add(1)
	x := Sample{Sent: time.Since(p.start)}
	text, err := body(p.model, messages, maxTokens)
	var a *answer
	if err == nil {
		a, err = p.client.post(ctx, text)
	}
	if err != nil {
		x.Err = err.Error()
		p.progress.Failed.Add(1)
	} else {
		x.TTFT, x.Total, x.Prompt, x.Output, x.gaps = a.ttft, a.total, a.prompt, a.output, a.gaps
	}
	p.progress.Done.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.samples = append(p.samples, x)
	if err != nil {
		return "", false
	}
	return a.text, true
}

// wait waits until a time since the start; false if ctx ended before.
func (p *player) wait(ctx context.Context, at time.Duration) bool {
	timer := time.NewTimer(at - time.Since(p.start))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Ask sends one short chat and returns the strategy that the picker has routed it by; empty without a picker.
func (c *Client) Ask(ctx context.Context, model string) (strategy string, err error) {
	text, err := body(model, []message{{Role: "user", Content: "Hello."}}, 1)
	if err != nil {
		return "", err
	}
	a, err := c.post(ctx, text)
	if err != nil {
		return "", err
	}
	return a.strategy, nil
}
