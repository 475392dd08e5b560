package picker

import (
	"math"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// TestNoRequestOfSeveralSequencesIsRefusedBecauseSmallerOnesKeepComing: an engine with a limit of eight sequences is always full of
// requests of one, which end one after the other. A request of four is sent before its time to live is over. One of nine, which the
// limit never lets in, delays no other.
func TestNoRequestOfSeveralSequencesIsRefusedBecauseSmallerOnesKeepComing(t *testing.T) {
	const limit = 8
	for _, sequences := range []int{4, limit + 1} {
		c := newClock()
		p := newPicker(t, c, waitingPool(t, 1))
		m := p.current.Load().pools[0].members[0]
		first := 0
		ask := func() (*Decision, *Wait) {
			t.Helper()
			first += 1000
			prompt := idsOf(first, 16)
			d, wait, err := p.PickKeyed(&Keyed{Model: "m", Prompt: prompt, Keys: kvblock.AppendKeys(nil, testSeed(t).Root("m", ""), prompt, 16),
				Streamed: true})
			if err != nil {
				t.Fatal(err)
			}
			return d, wait
		}
		var running []*Decision
		for range limit {
			d, _ := ask()
			d.FirstToken()
			running = append(running, d)
		}
		l := m.load.View(c.Now())
		m.ceiling.refused(c.Now(), openai.RequestLimit, &l, 1)
		_, several := ask()
		several.waiter.sequences = sequences
		var small []*Wait
		sent, longest := 0, 0
		for i := range 1900 { // 19 s; the time to live is 20 s
			for sent == 0 && len(small) < 2 {
				_, w := ask()
				small = append(small, w)
			}
			c.advance(10 * time.Millisecond)
			if i%10 == 0 && len(running) > 0 {
				running[0].End(Completed)
				running = running[1:]
			}
			lookAt(p)
			if sent == 0 {
				if d, over, err := several.Poll(); err != nil {
					t.Fatal(err)
				} else if over {
					sent = i
					d.FirstToken()
					running = append(running, d)
				}
			}
			idle := true
			for j := 0; j < len(small); j++ {
				d, over, err := small[j].Poll()
				if err != nil {
					t.Fatal(err)
				}
				if !over {
					continue
				}
				d.FirstToken()
				small, idle = append(small[:j], small[j+1:]...), false
				if len(running) >= limit {
					l := m.load.View(c.Now())
					l.Sequences--
					m.ceiling.refused(c.Now(), openai.RequestLimit, &l, 1)
					d.End(Failed)
					continue
				}
				running = append(running, d)
			}
			if longest++; !idle {
				longest = 0
			}
			if sequences > limit && longest > 20 {
				t.Fatalf("for %d ms no other request was sent", 10*longest)
			}
		}
		if is := sent > 0; is != (sequences <= limit) {
			t.Errorf("%d sequences: sent after %d ms", sequences, 10*sent)
		} else if is && sent < 1000 {
			t.Errorf("%d sequences: sent after %d ms already, before it is overdue", sequences, 10*sent)
		}
	}
}

// TestManySequencesAreManySequences: a product that no integer can hold is no small number.
func TestManySequencesAreManySequences(t *testing.T) {
	for _, n := range []int{math.MaxInt, math.MaxInt/2 + 1, 1 << 40} {
		r := &openai.Request{N: n, Prompts: make([]openai.Prompt, 4)}
		if got := sequencesOf(r); got < 1<<30 {
			t.Errorf("%d answers to each of 4 prompts are %d sequences", n, got)
		}
	}
	if got := sequencesOf(&openai.Request{N: 3, Prompts: make([]openai.Prompt, 4)}); got != 12 {
		t.Errorf("3 answers to each of 4 prompts are %d sequences", got)
	}
}
