package picker

import (
	"sync"
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
)

// reloads keeps apart what an engine stored for a LoRA adapter before and after it loaded the adapter from another path.
// From vLLM 0.31 on, block hashes cover the path, so that requests no longer find the blocks of the former weights; but
// events name the adapter only, and the old blocks stay in the index until they are evicted. The list of models has the
// path. Once it changes, only blocks that were announced afterwards, or that an answer shows to be found, match requests
// for the adapter.
//
// Known limits: blocks that were announced between the change and its reading from the list match only after an answer
// has shown them. A picker that starts later does not know of the change. An adapter that returns to a former path finds
// its former blocks again, which an answer has to show, too.
//
// It is safe for concurrent use.
type reloads struct {
	active atomic.Bool // some adapter is in since

	mu    sync.Mutex
	roots map[string]string // paths of adapters, as last listed; kept while an adapter is not loaded
	// changes counts changed paths. since has the adapters whose path changed; at has the keys that were announced
	// afterwards, with the count of changes when they were.
	changes uint64
	since   map[string]reload
	at      map[kvblock.Key]uint64
}

// reload is the last change of an adapter's path: its number, and how many keys the endpoint had announced then.
type reload struct{ number, announced uint64 }

const (
	// maxReloadKeys bounds the keys that are kept for an endpoint. An endpoint that announces more has replaced its
	// blocks, unless it is larger than any engine of today.
	maxReloadKeys = 1 << 18
	// maxReloadRoots bounds the adapters whose paths are kept for an endpoint.
	maxReloadRoots = 4096
)

// list takes the models that the engine lists, while it has announced so many keys. It returns the adapters that it loaded
// from another path than before.
func (r *reloads) list(models []ListedModel, announced uint64) (changed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range models {
		m := &models[i]
		if m.Parent == "" || m.Root == "" {
			continue
		}
		before, known := r.roots[m.Name]
		if !known && len(r.roots) >= maxReloadRoots {
			continue
		}
		if r.roots == nil {
			r.roots = map[string]string{}
		}
		r.roots[m.Name] = m.Root
		if known && before != m.Root {
			changed = append(changed, m.Name)
			if r.since == nil {
				r.since, r.at = map[string]reload{}, map[kvblock.Key]uint64{}
			}
			r.changes++
			r.since[m.Name] = reload{r.changes, announced}
		}
	}
	r.active.Store(len(r.since) > 0)
	return changed
}

// note takes keys that were announced. announced counts all of them, these included; room is how many the engine can
// hold, 0 while that is not known. An engine that has announced twice as many since a change has evicted what was before.
func (r *reloads) note(keys []kvblock.Key, announced, room uint64) {
	if !r.active.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.since) == 0 { // meanwhile
		return
	}
	for _, key := range keys {
		r.at[key] = r.changes
	}
	full := len(r.at) > maxReloadKeys
	for adapter, since := range r.since {
		if full || room > 0 && announced-since.announced > 2*room {
			delete(r.since, adapter)
		}
	}
	r.settle()
}

// found takes the keys that an answer for an adapter shows to be found.
func (r *reloads) found(adapter string, keys []kvblock.Key) {
	if !r.active.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.since[adapter]; !ok || len(r.at)+len(keys) > maxReloadKeys {
		return
	}
	for _, key := range keys {
		r.at[key] = r.changes
	}
}

// cut is the part of a match of keys that a request for an adapter can find; all of it for the base model.
func (r *reloads) cut(adapter string, keys []kvblock.Key, match kvindex.Match) kvindex.Match {
	if adapter == "" || !r.active.Load() {
		return match
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	since, ok := r.since[adapter]
	if !ok {
		return match
	}
	n := 0
	for n < min(match.Blocks(), len(keys)) && r.at[keys[n]] >= since.number {
		n++
	}
	return match.Whole(n, 1)
}

// clear records that the engine holds nothing any more. Paths are kept.
func (r *reloads) clear() {
	if !r.active.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.since)
	r.settle()
}

// settle drops the keys once no adapter needs them. mu is held.
func (r *reloads) settle() {
	if len(r.since) == 0 {
		r.since, r.at = nil, nil
		r.active.Store(false)
	}
}

// noteReloads takes keys that the endpoint has announced, after they were counted.
func (m *member) noteReloads(keys []kvblock.Key, announced uint64) {
	if m.reloads.active.Load() {
		m.reloads.note(keys, announced, uint64(max(0, m.blocks.Load()))*uint64(m.grain.keys()))
	}
}

// observeReloads takes the models that an engine lists.
func (p *Picker) observeReloads(v *view, m *member, id endpoint.ID, models []ListedModel) {
	if p.options.Release != nil && chatprompt.Before(p.options.Release(id), 0, 31) {
		return // the engine finds blocks by the adapter's name
	}
	for _, adapter := range m.reloads.list(models, m.stored.Load()) {
		logging.Warn(v.log, "LoRA adapter loaded from another path: its earlier blocks are ignored",
			"pool", v.spec.Name, "pod", id.Pod, "rank", id.Rank, "model", adapter)
	}
}
