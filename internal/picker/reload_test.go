package picker

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/load"
)

// reloader is a pool of one endpoint that has stored a prompt for the adapter "sql".
type reloader struct {
	t    *testing.T
	p    *Picker
	feed Feed
	keys []kvblock.Key
	next kvevent.Hash
}

func newReloader(t *testing.T, release string) *reloader {
	spec := testSpec(t, 1)
	spec.DiscoverAdapters, spec.Policy.SpeculationOff = true, true
	r := &reloader{t: t, p: New(Options{Now: newClock().Now, Release: func(endpoint.ID) string { return release }})}
	if err := r.p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	r.feed = feed(t, r.p, "pod-0")
	r.lists("/a")
	r.keys = keysOf(t, "sql", 0, 192)
	r.stores(r.keys)
	return r
}

// lists has the engine list the adapter with a path; without one, not at all.
func (r *reloader) lists(path string) {
	models := []ListedModel{{Name: "m", Root: "/m"}}
	if path != "" {
		models = append(models, ListedModel{Name: "sql", Parent: "m", Root: path})
	}
	r.p.ObserveModels(r.feed.Endpoint.ID, models)
}

// stores announces a chain of blocks under names that were never used before.
func (r *reloader) stores(keys []kvblock.Key) (first kvevent.Hash) {
	first = r.next + 1
	var hashes []kvevent.Hash
	for range keys {
		r.next++
		hashes = append(hashes, r.next)
	}
	r.feed.Writer.Store(kvblock.GPU, 0, kvindex.Parent{}, hashes, keys)
	return first
}

// want sends a prompt of 200 tokens, the engine finds some of them, and compares the prediction.
func (r *reloader) want(what, model string, predicted, found int) {
	r.t.Helper()
	d := pick(r.t, r.p, completion(model, 0, 200, false))
	d.Usage(200, found)
	d.End(Completed)
	if got := d.Targets[0].Predicted; got != predicted {
		r.t.Errorf("%s: %d tokens are predicted, want %d", what, got, predicted)
	}
}

// TestBlocksOfAnAdaptersFormerWeightsDoNotMatch: block hashes cover the path, events do not name it.
func TestBlocksOfAnAdaptersFormerWeightsDoNotMatch(t *testing.T) {
	for name, paths := range map[string][]string{
		"unloaded and loaded from another path": {"", "/b"},
		"loaded from another path in place":     {"/b"},
		"loaded from two other paths":           {"/b", "", "/c"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReloader(t, "0.32.0")
			r.stores(keysOf(t, "m", 0, 192))
			r.want("before", "sql", 192, 192)
			for _, path := range paths {
				r.lists(path)
			}
			r.want("loaded again", "sql", 0, 0)
			r.want("the base model", "m", 192, 192)
			first := r.stores(r.keys[:4])
			r.want("announced again", "sql", 64, 64)
			r.feed.Writer.Drop(kvblock.GPU, 0, []kvevent.Hash{first + 3})
			r.stores(r.keys)
			r.want("announced whole", "sql", 192, 192)
		})
	}
}

// TestAnswersShowBlocksOfAReloadedAdapter: such as were announced before the list of models had the new path.
func TestAnswersShowBlocksOfAReloadedAdapter(t *testing.T) {
	r := newReloader(t, "")
	r.lists("/b")
	r.want("loaded again", "sql", 0, 96)
	r.want("an answer found six blocks", "sql", 96, 96)
	r.lists("/c")
	r.want("loaded a third time", "sql", 0, 0)
}

// TestAnAdapterKeepsItsBlocksWhereTheEngineFindsThem: from the same path, and in releases that hash the name alone.
func TestAnAdapterKeepsItsBlocksWhereTheEngineFindsThem(t *testing.T) {
	for name, tc := range map[string]struct {
		release string
		paths   []string
	}{
		"from the same path":            {"0.32.0", []string{"", "/a"}},
		"not loaded":                    {"0.32.0", []string{""}},
		"another path before vLLM 0.31": {"0.30.1", []string{"/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReloader(t, tc.release)
			for _, path := range tc.paths {
				r.lists(path)
			}
			if len(r.p.current.Load().pools[0].members[0].reloads.since) != 0 {
				t.Error("blocks are kept apart")
			}
			r.lists("/a")
			r.want("loaded again", "sql", 192, 192)
		})
	}
}

// TestReloadsAreForgotten once the engine has nothing of before: its cache is empty, or it has announced twice as many
// blocks as it has.
func TestReloadsAreForgotten(t *testing.T) {
	for name, then := range map[string]func(r *reloader){
		"cleared": func(r *reloader) { r.feed.Writer.Clear() },
		"replaced": func(r *reloader) {
			r.p.Observe(r.feed.Endpoint.ID, r.p.now(), load.Report{Blocks: 100, BlockTokens: 16})
			for i := range 21 {
				r.stores(keysOf(t, "m", 10_000*i, 160))
			}
		},
		"too many to remember": func(r *reloader) {
			keys := make([]kvblock.Key, 1024)
			for i := range maxReloadKeys/len(keys) + 1 {
				for j := range keys {
					keys[j] = kvblock.Key(1 + i*len(keys) + j)
				}
				r.p.current.Load().pools[0].members[0].noteReloads(keys, uint64(1000+i))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReloader(t, "0.32.0")
			r.lists("/b")
			m := r.p.current.Load().pools[0].members[0]
			if !m.reloads.active.Load() {
				t.Fatal("nothing is kept apart")
			}
			then(r)
			if m.reloads.active.Load() || len(m.reloads.at) > 0 {
				t.Errorf("%d keys are kept", len(m.reloads.at))
			}
			r.feed.Writer.Clear()
			r.stores(r.keys)
			r.want("afterwards", "sql", 192, 192)
			r.lists("/c")
			r.want("loaded a third time", "sql", 0, 0)
		})
	}
}
