package real

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestEvictionIsFollowed lets eight clients at a time hold conversations that are together three times as long as the
// caches of both engines, while the requests in an engine use most of its cache. Every prediction that is wrong must be
// explained by an eviction that was not announced yet when the request was sent; the rest stays within the goals, the log of
// decisions says of each request what the engine found, and why where that is nothing, and in the end the index equals the engines' caches.
func TestEvictionIsFollowed(t *testing.T) {
	engines := sharedEngines(t)
	pass(t)
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: c.files, decisions: true})
			began := time.Now()
			requests := 60 // of each client
			if !c.files {
				requests = 30 // what is evicted does not depend on where tokens come from
			}
			if *budgetFlag > 0 { // the caches are full after a third of them
				requests = requests * 3 / 5
			}
			answers := p.converse(c.name, requests)
			verdict(t, p.holdsTheSame(engines))
			h, err := historySince(engines, began)
			if err != nil {
				t.Fatal(err)
			}
			t.Log("Predicted and delivered under eviction:\n" + h.table(answers))
			for _, a := range answers {
				if cause, _ := h.cause(a); cause != asPredicted && cause != notExplained {
					a.request.shape = evictedMeanwhile
				}
				p.count(a)
			}
			verdict(t, enoughAsPredicted(answers))
			verdict(t, p.decided(answers))
			verdict(t, p.seen.within("eviction", c.files, goalEvictionExact, goalEvictionDeviation))
		})
	}
}

// goalRaw is the least share in percent of predictions that are right before any is excused: an engine that evicts
// without reason, or a picker that follows nothing, would excuse everything. Six runs had 90.6 %.
const goalRaw = 85

// enoughAsPredicted returns nil if few enough answers need an excuse.
func enoughAsPredicted(answers []answer) error {
	exact := 0
	for _, a := range answers {
		if a.predicted == a.delivered {
			exact++
		}
	}
	if 100*exact < goalRaw*len(answers) || len(answers) == 0 {
		return fmt.Errorf("%d of %d predictions are exact before any is excused (goal %d %%)", exact, len(answers), goalRaw)
	}
	return nil
}

// TestExcusesAreBounded: what evictions explain can be no more than 15 % of the answers.
func TestExcusesAreBounded(t *testing.T) {
	for exact, fine := range map[int]bool{84: false, 85: true, 100: true} {
		var answers []answer
		for i := range 100 {
			a := answer{predicted: 16, delivered: 16}
			if i >= exact {
				a.delivered = 0
			}
			answers = append(answers, a)
		}
		if err := enoughAsPredicted(answers); (err == nil) != fine {
			t.Errorf("%d of 100: %v", exact, err)
		}
	}
	if enoughAsPredicted(nil) == nil {
		t.Error("a run without answers passes")
	}
}

// converse lets eight clients hold conversations, with a number of requests each, and returns the answers.
func (p *picker) converse(name string, requests int) []answer {
	const clients, conversations = 8, 4 // of each client
	var sending sync.WaitGroup
	got := make(chan answer, clients*requests)
	for client := range clients {
		sending.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(client)))
			var histories [conversations][]object
			for range requests {
				n := random.IntN(conversations)
				if len(histories[n]) > 16 {
					histories[n] = nil
				}
				id := fmt.Sprintf("eviction %s %d %d %d", name, client, n, random.Int())
				if histories[n] == nil {
					histories[n] = []object{say("system", text(id, 300+random.IntN(300)))}
				}
				histories[n] = append(histories[n], say("user", text(id, 20+random.IntN(100))))
				got <- p.try(p.t.Context(), chat("eviction", histories[n]...).with(object{"max_tokens": 1 + random.IntN(8)}))
				histories[n] = append(histories[n], say("assistant", "Answer to "+id))
			}
		})
	}
	sending.Wait()
	close(got)
	var answers []answer
	for a := range got {
		if a.err != nil || a.status != 200 {
			p.t.Errorf("status %d, error %v: %.300s", a.status, a.err, a.body)
			continue
		}
		answers = append(answers, a)
	}
	return answers
}

// table counts answers by cause, and by whether what was evicted made room for a request that was sent earlier or later.
func (h *history) table(answers []answer) string {
	sent := map[string]time.Time{}
	for _, a := range answers {
		sent[a.id] = a.sent
	}
	type row struct{ requests, tokens, earlier, later int }
	rows := map[string]row{}
	var out strings.Builder
	for _, a := range answers {
		cause, evictedFor := h.cause(a)
		r := rows[cause]
		r.requests++
		r.tokens += max(a.predicted-a.delivered, a.delivered-a.predicted)
		if other, ok := sent[evictedFor]; ok && other.Before(a.sent) {
			r.earlier++
		} else if ok {
			r.later++
		}
		rows[cause] = r
		if cause == notExplained {
			fmt.Fprintf(&out, "%s, %v: %s\n", a.pod, a.exact(), h.story(a))
		}
	}
	fmt.Fprintf(&out, "%-34s %8s %8s %18s %8s\n", "cause", "requests", "tokens", "for one sent before", "after")
	for _, cause := range []string{asPredicted, evictedBefore, evictedOnTheWay, evictedInQueue, notExplained} {
		r := rows[cause]
		fmt.Fprintf(&out, "%-34s %8d %8d %18d %8d\n", cause, r.requests, r.tokens, r.earlier, r.later)
	}
	return out.String()
}
