package chat

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestScriptsFollowFromTheirSeed(t *testing.T) {
	c := Default(12, time.Minute)
	first, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Error(diff)
	}
	c.Seed++
	other, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if other.System == first.System {
		t.Error("two seeds have one system prompt")
	}
}

func TestScriptsKeepTheirBounds(t *testing.T) {
	c := Default(40, 5*time.Minute)
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(s.System)); n != c.SystemWords {
		t.Errorf("the system prompt has %d words, want %d", n, c.SystemWords)
	}
	if len(s.Sessions) != c.Sessions {
		t.Fatalf("%d sessions, want %d", len(s.Sessions), c.Sessions)
	}
	uncut := false
	turns, seen := 0, map[string]bool{}
	for i, session := range s.Sessions {
		if session.Start < 0 || session.Start >= c.Span || i > 0 && session.Start <= s.Sessions[i-1].Start {
			t.Errorf("session %d starts at %v", i, session.Start)
		}
		if n := len(session.Turns); n < 1 || n > c.MaxTurns {
			t.Errorf("session %d has %d turns", i, n)
		}
		uncut = uncut || len(session.Turns) >= c.MinTurns
		if at := expectedLast(&session); at >= c.Span {
			t.Errorf("the last turn of session %d is expected at %v", i, at)
		}
		for j, turn := range session.Turns {
			turns++
			if n := len(strings.Fields(turn.User)); n < c.MinWords || n > c.MaxWords {
				t.Errorf("turn %d.%d has %d words", i, j, n)
			}
			if turn.MaxTokens < c.MinAnswer || turn.MaxTokens > c.MaxAnswer {
				t.Errorf("turn %d.%d asks for %d tokens", i, j, turn.MaxTokens)
			}
			if j == 0 && turn.Think != 0 || j > 0 && (turn.Think < c.MeanThink/4 || turn.Think > 3*c.MeanThink) {
				t.Errorf("turn %d.%d thinks %v", i, j, turn.Think)
			}
			if seen[turn.User] {
				t.Errorf("turn %d.%d was said before", i, j)
			}
			seen[turn.User] = true
		}
	}
	if !uncut {
		t.Error("every session is cut")
	}
	if got := s.Requests(); got != turns {
		t.Errorf("%d requests, want %d", got, turns)
	}
}

// expectedLast is when a session's last turn is sent if every answer takes as long as expected.
func expectedLast(s *Session) time.Duration {
	at := s.Start
	for i, turn := range s.Turns {
		if i > 0 {
			at += time.Duration(s.Turns[i-1].MaxTokens) * TokenTime
		}
		at += turn.Think
	}
	return at
}

func TestNewRefusesWhatCannotBe(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"no turns":               func(c *Config) { c.MinTurns = 0 },
		"bounds the wrong way":   func(c *Config) { c.MaxWords = c.MinWords - 1 },
		"an empty answer":        func(c *Config) { c.MinAnswer = 0 },
		"fewer than no sessions": func(c *Config) { c.Sessions = -1 },
		"thinking backwards":     func(c *Config) { c.MeanThink = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			c := Default(3, time.Minute)
			spoil(&c)
			if _, err := New(c); err == nil {
				t.Error("no error")
			}
		})
	}
}
