package picker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// algorithm is algorithm 1 of "Stateful Cache-Aware Routing for Distributed LLM Inference" as published, with prefixes in
// full blocks: a map from prefixes to the workers that hold them, and the workers' load.
type algorithm struct {
	load map[string]int
	// held is how many blocks of a family of prompts a worker holds, as it has announced; assumed what was sent to it and
	// has not ended.
	held    map[string]map[int]int
	assumed map[string]map[int][]int
}

// candidates are the workers that can be chosen: the least loaded of those that hold the prefix, else of all.
func (a *algorithm) candidates(family, tokens, prefixLen int) (least map[string]bool, hit bool) {
	l := prefixLen
	if l == 0 {
		l = 64
	}
	blocks := min(max(1, l/16), (tokens-1)/16)
	holds := func(pod string) bool {
		most := a.held[pod][family]
		for _, n := range a.assumed[pod][family] {
			most = max(most, n)
		}
		return blocks > 0 && most >= blocks
	}
	for pod := range a.load {
		hit = hit || holds(pod)
	}
	least = map[string]bool{}
	lowest := 1 << 30
	for pod, load := range a.load {
		if hit && !holds(pod) || load > lowest {
			continue
		}
		if load < lowest {
			clear(least)
			lowest = load
		}
		least[pod] = true
	}
	return least, hit
}

// TestStickyLeastLoadedIsItsAlgorithm plays requests of some families with prefixes of all lengths, pods that announce and
// evict, and ends in any order: every choice is one that the algorithm can make.
func TestStickyLeastLoadedIsItsAlgorithm(t *testing.T) {
	hits, misses := 0, 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		clock := newClock()
		p := newPicker(t, clock, testSpec(t, 5))
		a := &algorithm{load: map[string]int{}, held: map[string]map[int]int{}, assumed: map[string]map[int][]int{}}
		for i := range 5 {
			pod := fmt.Sprint("pod-", i)
			a.load[pod], a.held[pod], a.assumed[pod] = 0, map[int]int{}, map[int][]int{}
		}
		type request struct {
			d              *Decision
			family, tokens int
			pod            string
		}
		var open []request
		for range 300 {
			clock.advance(time.Duration(rng.IntN(50)) * time.Millisecond)
			switch op := rng.IntN(10); {
			case op < 5 || len(open) == 0:
				family, tokens, prefixLen := rng.IntN(6), 1+rng.IntN(400), 0
				body := string(completion("m", 1000*family, tokens, true))
				if rng.IntN(2) == 0 {
					prefixLen = 1 + rng.IntN(300)
					body = strings.Replace(body, "{", fmt.Sprintf(`{"prefix_len":%d,`, prefixLen), 1)
				}
				may, hit := a.candidates(family, tokens, prefixLen)
				d := pick(t, p, []byte(body))
				pod := d.Targets[0].Endpoint.Pod
				if !may[pod] {
					t.Fatalf("seed %d: a prompt of %d tokens with a prefix of %d went to %s, the algorithm takes one of %v", seed, tokens, prefixLen, pod, may)
				}
				if hit {
					hits++
				} else {
					misses++
				}
				a.load[pod]++
				a.assumed[pod][family] = append(a.assumed[pod][family], tokens/16)
				open = append(open, request{d, family, tokens, pod})
			case op < 7: // a pod announces what it was sent
				x := open[rng.IntN(len(open))]
				if a.held[x.pod][x.family] == 0 { // a second copy would have to be evicted, too
					hold(feed(t, p, x.pod), keysOf(t, "m", 1000*x.family, x.tokens)...)
					a.held[x.pod][x.family] = x.tokens / 16
				}
			case op == 7: // and evicts it all
				pod := fmt.Sprint("pod-", rng.IntN(5))
				family := rng.IntN(6)
				f := feed(t, p, pod)
				keys := keysOf(t, "m", 1000*family, 16*a.held[pod][family])
				f.Writer.Drop(kvblock.GPU, 0, asHashes(keys))
				delete(a.held[pod], family)
			default:
				i := rng.IntN(len(open))
				x := open[i]
				x.d.End(Completed)
				expectEvents(p)
				open = append(open[:i], open[i+1:]...)
				a.load[x.pod]--
				list := a.assumed[x.pod][x.family]
				for j, n := range list {
					if n == x.tokens/16 {
						a.assumed[x.pod][x.family] = append(list[:j:j], list[j+1:]...)
						break
					}
				}
			}
		}
		for _, x := range open {
			x.d.End(Completed)
		}
		assertIdle(t, p)
	}
	if hits < 1000 || misses < 200 {
		t.Errorf("%d hits and %d misses: too few to tell", hits, misses)
	}
}
