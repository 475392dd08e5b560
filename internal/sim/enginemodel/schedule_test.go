package enginemodel

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecodesComeBeforePrefills(t *testing.T) {
	e := newEngine(t, Config{NumBlocks: 100, BlockSize: 4, MaxBatchedTokens: 8})
	a := newRequest(t, e, Spec{Prompt: sequence(1, 4), MaxTokens: 10})
	e.Add(a, 0)
	e.Step(0)
	e.Add(newRequest(t, e, Spec{Prompt: sequence(100, 20), MaxTokens: 10}), 0)
	var got [][2]int
	for range 4 {
		res, _ := e.Step(0)
		got = append(got, [2]int{res.DecodeTokens, res.PrefillTokens})
	}
	if diff := cmp.Diff([][2]int{{1, 7}, {1, 7}, {1, 6}, {2, 0}}, got); diff != "" {
		t.Errorf("decode and prefill tokens per step (-want +got):\n%s", diff)
	}
}

func TestPreemptedRequestIsServedFirst(t *testing.T) {
	e := newEngine(t, Config{NumBlocks: 8, BlockSize: 4})
	old := newRequest(t, e, Spec{Prompt: sequence(1, 14), MaxTokens: 17})
	young := newRequest(t, e, Spec{Prompt: sequence(100, 14), MaxTokens: 17})
	e.Add(old, 0)
	e.Add(young, 0)
	late := newRequest(t, e, Spec{Prompt: sequence(200, 2), MaxTokens: 1})
	e.Step(0)
	for old.Preemptions+young.Preemptions == 0 {
		if _, ok := e.Step(0); !ok {
			t.Fatal("no request was preempted")
		}
	}
	e.Add(late, 0)
	if young.Preemptions != 1 || e.waiting[0] != young || e.waiting[1] != late {
		t.Fatalf("preempted: old %d, young %d; %d waiting", old.Preemptions, young.Preemptions, len(e.waiting))
	}
	run(t, e, 0)
	if !old.Done() || !young.Done() || len(young.Output()) != 17 || young.CachedTokens != 0 {
		t.Errorf("old done %v, young done %v with %d tokens, cached %d", old.Done(), young.Done(), len(young.Output()), young.CachedTokens)
	}
}

// TestWhatIsHopelessCannotBeAdmitted, by looking all blocks up, whichever block is taken to lack.
func TestWhatIsHopelessCannotBeAdmitted(t *testing.T) {
	hopeless, refused := 0, 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 6))
		e := newEngine(t, Config{
			NumBlocks: 24, BlockSize: 4, MaxModelLen: 96, MaxBatchedTokens: 32, MaxSeqs: 6, Seed: 1, Time: profiles[0].Time, NoPrefixCaching: seed%8 == 0,
		})
		workload(t, e, seed, 60, func(StepResult) {
			for _, r := range e.waiting {
				size, budget := e.cfg.BlockSize, 1+rng.IntN(40)
				r.hashes = e.chain.Hashes(r.hashes, r.root, r.tokens, size)
				hits, unused := 0, 0
				for _, h := range r.hashes[:(len(r.tokens)-1)/size] {
					b, ok := e.pool.Lookup(h)
					if !ok || e.cfg.NoPrefixCaching {
						break
					}
					if hits++; e.pool.Refs(b) == 0 {
						unused++
					}
				}
				n := min(len(r.tokens)-hits*size, budget)
				fits := ceilDiv(hits*size+n, size)-hits <= e.pool.Free()-unused
				was := r.lacked
				for _, r.lacked = range []int{was, rng.IntN(20)} {
					if e.hopeless(r, budget) {
						if hopeless++; fits {
							t.Fatalf("seed %d: %d tokens with %d blocks cached (%d of them unused) fit into %d free ones", seed, len(r.tokens), hits, unused, e.pool.Free())
						}
					}
				}
				if r.lacked = was; !fits {
					refused++
				}
			}
		})
	}
	if hopeless < 100 || refused < 100 {
		t.Errorf("%d hopeless, %d that do not fit: too few to tell", hopeless, refused)
	}
}
