package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func load() Load {
	return Load{Model: "m", Length: time.Minute, Apps: 3, Sessions: 30, SystemWords: 50, MaxAnswer: 40, Think: time.Second}
}

func TestTurnsShareNoText(t *testing.T) {
	l := load()
	seen := map[string]bool{}
	for seed := range uint64(4) {
		scripts, err := l.scripts(seed)
		if err != nil {
			t.Fatal(err)
		}
		sessions := 0
		for _, s := range scripts {
			if start := strings.Join(strings.Fields(s.System)[:8], " "); seen[start] {
				t.Errorf("a system prompt begins like another one: %q", start)
			} else {
				seen[start] = true
			}
			sessions += len(s.Sessions)
			for i := range s.Sessions {
				if at := s.Sessions[i].Start; at < 0 || at >= l.Length {
					t.Errorf("a session begins at %v", at)
				}
				for _, turn := range s.Sessions[i].Turns {
					if turn.MaxTokens < 10 || turn.MaxTokens > 40 {
						t.Errorf("an answer of %d tokens", turn.MaxTokens)
					}
				}
			}
		}
		if sessions != 30 {
			t.Errorf("%d sessions, want 30", sessions)
		}
	}
}

func TestLoadsThatCannotBeMade(t *testing.T) {
	for name, spoil := range map[string]func(*Load){
		"no length":         func(l *Load) { l.Length = 0 },
		"no sessions":       func(l *Load) { l.Sessions = 0 },
		"not a number":      func(l *Load) { l.Sessions = nan() },
		"no applications":   func(l *Load) { l.Apps = 0 },
		"negative words":    func(l *Load) { l.SystemWords = -1 },
		"no answer":         func(l *Load) { l.MaxAnswer = 3 },
		"thinking backward": func(l *Load) { l.Think = -1 },
	} {
		l := load()
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		if spoil(&l); l.Check() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func nan() float64 { zero := 0.0; return zero / zero }

func TestEveryRequestIsRecorded(t *testing.T) {
	l := load()
	l.Length, l.Sessions, l.Think = time.Second, 300, time.Millisecond
	for name, tc := range map[string]struct {
		status int
		text   string
		failed bool
	}{"answers": {200, hello + lo + usage + end, false}, "refusals": {500, "", true}} {
		t.Run(name, func(t *testing.T) {
			var p Progress
			samples, err := l.Play(t.Context(), answering(t, tc.status, tc.text), 1, &p)
			if err != nil {
				t.Fatal(err)
			}
			n := int64(len(samples))
			if n < 5 || p.Sent.Load() != n || p.Done.Load() != n || p.Failed.Load() > 0 != tc.failed {
				t.Errorf("%d samples, %d sent, %d done, %d failed", n, p.Sent.Load(), p.Done.Load(), p.Failed.Load())
			}
			for i := range samples {
				if (samples[i].Err != "") != tc.failed {
					t.Errorf("sample %+v", samples[i])
				}
			}
		})
	}
}

func TestAnInterruptedTurnHasNoSamples(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no more")
	cancel(cause)
	l := load()
	samples, err := l.Play(ctx, answering(t, 200, hello+lo+end), 1, &Progress{})
	if samples != nil || !errors.Is(err, cause) {
		t.Errorf("%d samples, error %v", len(samples), err)
	}
}
