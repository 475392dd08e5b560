package kvindex

import "github.com/kvasir-dev/kvasir/internal/kvblock"

// Guess is the speculation that one request has made: that its endpoint will hold these blocks.
type Guess struct {
	by guesser // nil once it is withdrawn

	// Of a Table: the holder's slot, and the blocks.
	slot slot
	keys []kvblock.Key

	// Of an Index: the holder's generation, where the blocks are, and about how many bytes they take.
	generation *generation
	parts      []runPart
	bytes      int64
}

// guesser is an index that takes a guess back.
type guesser interface {
	withdraw(g *Guess)
}

// Withdraw takes the guess back. Further calls, and calls on nil, do nothing. It must not run concurrently with
// itself.
func (g *Guess) Withdraw() {
	if g == nil || g.by == nil {
		return
	}
	g.by.withdraw(g)
	*g = Guess{}
}

// Speculate implements Reader. It keeps keys.
func (t *Table) Speculate(h Holder, keys []kvblock.Key) *Guess {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.live[h]
	if !ok {
		return &Guess{}
	}
	for _, key := range keys {
		t.guess(s, key)
	}
	return &Guess{by: t, slot: s, keys: keys}
}

// withdraw implements guesser.
func (t *Table) withdraw(g *Guess) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range g.keys {
		t.unguess(g.slot, key)
	}
}

func (t *Table) guess(s slot, key kvblock.Key) {
	list := t.guesses[key]
	for i := range list {
		if list[i].slot == s {
			list[i].n++
			return
		}
	}
	t.guesses[key] = append(list, copies{place: place{slot: s}, n: 1})
	t.guessedN++
}

func (t *Table) unguess(s slot, key kvblock.Key) {
	list := t.guesses[key]
	for i := range list {
		if list[i].slot != s {
			continue
		}
		if list[i].n--; list[i].n > 0 {
			return
		}
		t.guessedN--
		if list = cut(list, i); len(list) == 0 {
			delete(t.guesses, key)
		} else {
			t.guesses[key] = list
		}
		return
	}
}
