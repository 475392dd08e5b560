package events

import (
	"fmt"
	"sync"
	"testing/synctest"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// log is a sink that remembers.
type log struct {
	mu     sync.Mutex
	lines  []string
	at     Position
	states []State
	marks  int
}

func (l *log) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *log) Begin(sameLife bool) { l.add("begin %v", sameLife) }
func (l *log) Revert() bool        { return false }

func (l *log) Apply(b *kvevent.Batch, _ Position) {
	for _, e := range b.Events {
		l.add("%d %v", e.Kind, e.Hashes)
	}
}

func (l *log) Mark(at Position, state State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = at
	l.marks++
	if n := len(l.states); n == 0 || l.states[n-1] != state {
		l.states = append(l.states, state)
	}
}

func (l *log) take() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}
