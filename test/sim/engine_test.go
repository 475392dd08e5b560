package sim

import (
	"slices"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// release is what a pod's engine is: its size, and how its publisher speaks.
type release struct {
	engine    string // as pools call it
	layout    vllmsim.Layout
	outerMap  bool
	digests   bool // hashes are sent as bytes
	newer     bool // it sends events that subscribers do not know
	murky     bool // it sends some of its events in a form that subscribers cannot decode
	blockSize int
	blocks    int
	// lower is the medium of a second tier, of lowerBlocks; none when 0. lowerTier is where we think that is.
	lower       string
	lowerTier   kvblock.Tier
	lowerKnown  bool
	lowerBlocks int
	groups      int // of full attention
	keep        int // batches kept for replay, 0 for all
	replay      bool
}

// salted and adapted report whether the release publishes what distinguishes such blocks.
func (r *release) salted() bool { return r.layout >= vllmsim.Layout017 }
func (r *release) named() bool  { return r.layout >= vllmsim.Layout014 }

// cacheBlock is a block that an engine has had at some time, by its hash.
type cacheBlock struct {
	hash    enginemodel.Hash
	parent  *cacheBlock // nil for the first of a chain
	tokens  []uint32
	adapter string
	salt    string
	at      int // tokens before it
	// unkeyed reports that the engine does not publish the identity of its blocks.
	unkeyed bool
	keys    [maxRoots][]kvblock.Key // that end in it, by root; nil until asked for
}

// engine is one life of a process: the truth. Its first tier and group is a complete enginemodel.Engine; the others are
// pools of the same kind, filled from what the first one stores.
type engine struct {
	w    *world
	life int
	release
	model  *enginemodel.Engine
	second *enginemodel.Pool // the second group's, nil if there is none
	below  *enginemodel.Pool // the second tier's, nil if there is none
	known  map[enginemodel.Hash]*cacheBlock
	order  []*cacheBlock
	active []*enginemodel.Request
	// cleared says that the cache has been cleared, and no event has reported it yet.
	cleared bool

	encoder vllmsim.Encoder
	events  []vllmsim.WireEvent // of the step
	raw     [][]byte            // events that the encoder does not know
	unread  bool                // some event could not be read

	history [][]byte // by number, from base
	base    uint64
	next    uint64
	conns   []*conn
}

func (w *world) newEngine(r *release) *engine {
	e := &engine{w: w, life: w.lives, release: *r, known: map[enginemodel.Hash]*cacheBlock{}}
	w.lives++
	model, err := enginemodel.New(enginemodel.Config{
		NumBlocks: r.blocks, BlockSize: r.blockSize, MaxBatchedTokens: 12 * r.blockSize, MaxSeqs: 4, Seed: w.rng.Uint64(),
	})
	if err != nil {
		w.fail("a simulated engine: %v", err)
	}
	e.model = model
	if r.groups > 1 {
		e.second = enginemodel.NewPool(r.blocks)
	}
	if r.lowerBlocks > 0 {
		e.below = enginemodel.NewPool(r.lowerBlocks)
	}
	e.encoder = vllmsim.Encoder{Layout: r.layout, Signed: r.layout < vllmsim.Layout0102}
	if r.digests {
		e.encoder.Digest = vllmsim.LongDigest
	}
	return e
}

var (
	adapters = []string{"", "", "", "law"}
	salts    = []string{"", "", "", "tenant"}
)

// request puts a request into the engine: a part of one of a few common prompts, and something of its own.
func (e *engine) request() {
	w := e.w
	spec := enginemodel.Spec{Prompt: w.prompt(e.blockSize), MaxTokens: 1 + w.rng.IntN(2*e.blockSize)}
	if spec.Adapter = adapters[w.rng.IntN(len(adapters))]; spec.Adapter != "" {
		spec.AdapterID = 1
	}
	if e.salted() {
		spec.Salt = salts[w.rng.IntN(len(salts))]
	}
	for range one(w, 1, 1, 2) { // two at a time compute the same blocks twice
		spec.Prompt = slices.Clone(spec.Prompt)
		r, err := e.model.NewRequest(spec)
		if err != nil {
			return // too long for this engine
		}
		e.model.Add(r, 0)
		e.active = append(e.active, r)
	}
}

// step lets the engine work, and publishes what has changed, if anything has.
func (e *engine) step() {
	w := e.w
	switch n := w.rng.IntN(100); {
	case n < 3:
		e.model.Evict(1 + w.rng.IntN(6))
	case n < 4 && len(e.active) > 0:
		e.model.Abort(e.active[w.rng.IntN(len(e.active))], 0)
	case n < 5 && w.chance(w.faults.clear):
		e.flushCache()
	}
	result, _ := e.model.Step(0)
	e.active = slices.DeleteFunc(e.active, (*enginemodel.Request).Done)
	e.events, e.raw = e.events[:0], nil
	for i := range result.Events {
		e.first(&result.Events[i])
	}
	if e.below != nil {
		e.offload()
	}
	if len(e.events)+len(e.raw) > 0 {
		e.publish(e.encode())
	}
}

// told reports that no event is held back until the engine's next step.
func (e *engine) told() bool { return !e.cleared }

// flushCache forgets everything. The engine reports it with its next step.
func (e *engine) flushCache() {
	for _, r := range e.active {
		e.model.Abort(r, 0)
	}
	e.active = e.active[:0]
	if !e.model.ResetPrefixCache() {
		e.w.fail("an idle engine cannot be cleared")
	}
	for _, p := range []*enginemodel.Pool{e.second, e.below} {
		if p != nil {
			p.Reset()
		}
	}
	e.cleared = true
	e.w.count("cache cleared")
}

// first takes an event of the first tier and group, and what the second group does then.
func (e *engine) first(ev *enginemodel.Event) {
	switch ev.Kind {
	case enginemodel.Stored:
		blocks := e.learn(ev)
		e.stored(blocks, 0, "GPU")
		if e.second != nil {
			e.follow(blocks)
		}
		for _, b := range blocks {
			if e.model.Pool().Copies(b.hash) > 1 {
				e.w.count("block held twice")
			}
		}
	case enginemodel.Removed:
		e.removed(0, "GPU", ev.Hashes...)
	case enginemodel.Cleared:
		e.cleared = false
		e.events = append(e.events, vllmsim.WireEvent{Kind: enginemodel.Cleared, Group: -1})
	}
}

// learn enters the blocks of an event in the catalogue.
func (e *engine) learn(ev *enginemodel.Event) []*cacheBlock {
	parent := e.known[ev.Parent]
	blocks := make([]*cacheBlock, len(ev.Hashes))
	for i, h := range ev.Hashes {
		b := e.known[h]
		if b == nil {
			b = &cacheBlock{
				hash: h, parent: parent, tokens: ev.Tokens[i*e.blockSize : (i+1)*e.blockSize], adapter: ev.Adapter, salt: ev.Salt,
				unkeyed: ev.Adapter != "" && !e.named(),
			}
			if parent != nil {
				b.at = parent.at + len(parent.tokens)
			}
			e.known[h] = b
			e.order = append(e.order, b)
		}
		blocks[i], parent = b, b
	}
	return blocks
}

// stored announces a chain of blocks in a place, and lets the world remember that this life has had them there.
func (e *engine) stored(blocks []*cacheBlock, group int, medium string) {
	ev := vllmsim.WireEvent{
		Kind: enginemodel.Stored, BlockSize: e.blockSize, Medium: medium, Group: group, Spec: "full_attention",
		Extra: make([][]vllmsim.ExtraKey, len(blocks)),
	}
	if p := blocks[0].parent; p != nil {
		ev.Parent = p.hash
	}
	if ev.LoRAName = blocks[0].adapter; ev.LoRAName != "" {
		ev.LoRAID = 1
	}
	for i, b := range blocks {
		ev.Hashes = append(ev.Hashes, b.hash)
		ev.Tokens = append(ev.Tokens, b.tokens...)
		if b.adapter != "" {
			ev.Extra[i] = append(ev.Extra[i], vllmsim.ExtraKey{Name: b.adapter})
		}
		if b.salt != "" && b.parent == nil {
			ev.Extra[i] = append(ev.Extra[i], vllmsim.ExtraKey{Name: b.salt})
		}
		e.w.remember(e, b, e.tierOf(medium), group)
	}
	e.events = append(e.events, ev)
}

func (e *engine) tierOf(medium string) kvblock.Tier {
	if medium == "GPU" {
		return kvblock.GPU
	}
	return e.lowerTier
}

func (e *engine) removed(group int, medium string, hashes ...enginemodel.Hash) {
	e.events = append(e.events, vllmsim.WireEvent{Kind: enginemodel.Removed, Hashes: slices.Clone(hashes), Medium: medium, Group: group})
}

// follow stores blocks in the second group too, unless it lacks what they follow. As in vLLM, a request holds its whole prompt: a
// block is never evicted before those that follow it.
func (e *engine) follow(blocks []*cacheBlock) {
	var used []enginemodel.Block
	for p := blocks[0].parent; p != nil; p = p.parent {
		b, ok := e.second.Lookup(p.hash)
		if !ok {
			return
		}
		used = append(used, b)
	}
	slices.Reverse(used)
	for _, b := range used {
		e.second.Touch(b)
	}
	n := 0
	for _, b := range blocks {
		at, evicted, ok := e.second.Allocate()
		if !ok {
			break
		}
		if evicted != 0 {
			e.removed(1, "GPU", evicted)
		}
		e.second.Commit(at, b.hash)
		used = append(used, at)
		n++
	}
	if n > 0 {
		e.stored(blocks[:n], 1, "GPU")
		e.w.count("second group")
	}
	e.second.Release(used)
	if e.w.rng.IntN(8) == 0 {
		e.second.EvictOldest(1+e.w.rng.IntN(3), func(h enginemodel.Hash) { e.removed(1, "GPU", h) })
	}
}

// offload copies blocks to the second tier, and perhaps forgets some that are there.
func (e *engine) offload() {
	w := e.w
	if w.rng.IntN(12) == 0 {
		e.below.EvictOldest(1+w.rng.IntN(4), func(h enginemodel.Hash) { e.removed(0, e.lower, h) })
	}
	if len(e.order) == 0 || w.rng.IntN(3) > 0 {
		return
	}
	if w.rng.IntN(60) == 0 && e.layout < vllmsim.Layout024 {
		e.below.EvictOldest(e.below.Len(), func(enginemodel.Hash) {})
		e.raw = append(e.raw, rawTierCleared(e.lower))
		w.count("tier cleared")
		return // the rest of the batch would precede it
	}
	b := e.order[max(0, len(e.order)-16)+w.rng.IntN(min(len(e.order), 16))]
	if e.model.Pool().Copies(b.hash) == 0 {
		return
	}
	at, evicted, ok := e.below.Allocate()
	if !ok {
		return
	}
	if evicted != 0 {
		e.removed(0, e.lower, evicted)
	}
	e.below.Commit(at, b.hash)
	e.below.Release([]enginemodel.Block{at})
	w.count("offloaded")
	if e.salted() && !b.unkeyed && w.rng.IntN(2) == 0 && e.holds(b.parent) {
		e.stored([]*cacheBlock{b}, 0, e.lower)
		return
	}
	// By its hash alone.
	w.remember(e, b, e.lowerTier, 0)
	e.events = append(e.events, vllmsim.WireEvent{Kind: enginemodel.Stored, Hashes: []enginemodel.Hash{b.hash}, Medium: e.lower, Group: -1})
}

// holds reports whether a block is known to a subscriber that has followed from the start: it has a copy, or is none.
func (e *engine) holds(b *cacheBlock) bool { return b == nil || e.model.Pool().Copies(b.hash) > 0 }

// publish numbers a batch, keeps it and sends it to all subscribers.
func (e *engine) publish(payload []byte) {
	seq := e.next
	e.next++
	e.history = append(e.history, payload)
	if e.keep > 0 && len(e.history) > e.keep {
		e.history = e.history[1:]
		e.base++
	}
	for _, c := range e.conns {
		c.send(seq, payload)
	}
}

// place is a key in a tier and group.
type place struct {
	key   kvblock.Key
	tier  kvblock.Tier
	group int
}

// keysOf are the keys that end in a block, under a root: several when it is several blocks of ours, one when it ends a
// block of ours that several of the engine's make, else none.
func (w *world) keysOf(b *cacheBlock, root int) []kvblock.Key {
	if b.keys[root] != nil {
		return b.keys[root]
	}
	bt, r := w.blockTokens, &w.roots[root]
	keys := []kvblock.Key{}
	switch size := len(b.tokens); {
	case size%bt == 0:
		parent := r.Seed.Root(orModel(b.adapter, r.Model), b.salt)
		if b.parent != nil {
			before := w.keysOf(b.parent, root)
			parent = before[len(before)-1]
		}
		keys = kvblock.AppendKeys(keys, parent, b.tokens, bt)
	case bt%size == 0 && (b.at+size)%bt == 0:
		tokens := make([]uint32, bt)
		first := b
		for at := bt; ; first = first.parent {
			at -= size
			copy(tokens[at:], first.tokens)
			if at == 0 {
				break
			}
		}
		parent := r.Seed.Root(orModel(b.adapter, r.Model), b.salt)
		if first.parent != nil {
			parent = w.keysOf(first.parent, root)[0]
		}
		keys = append(keys, kvblock.Next(parent, tokens, 0))
	}
	b.keys[root] = keys
	return keys
}

func orModel(adapter, model string) string {
	if adapter != "" {
		return adapter
	}
	return model
}

// truth is what an index must have of the engine under a root. joins says that the subscriber makes one block of ours of
// several of the engine's.
func (e *engine) truth(root int, joins bool) map[place]bool {
	out := map[place]bool{}
	ratio := max(1, e.w.blockTokens/e.blockSize)
	if ratio > 1 && !joins {
		return out
	}
	add := func(p *enginemodel.Pool, tier kvblock.Tier, group int) {
		if p == nil {
			return
		}
		for h := range p.All {
			b := e.known[h]
			whole := !b.unkeyed
			for i, part := 1, b; i < ratio && whole && (b.at+e.blockSize)%e.w.blockTokens == 0; i++ {
				part = part.parent
				whole = p.Copies(part.hash) > 0
			}
			if whole {
				for _, key := range e.w.keysOf(b, root) {
					out[place{key, tier, group}] = true
				}
			}
		}
	}
	add(e.model.Pool(), kvblock.GPU, 0)
	add(e.second, kvblock.GPU, 1)
	if e.lowerKnown {
		add(e.below, e.lowerTier, 0)
	}
	return out
}
