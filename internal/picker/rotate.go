package picker

import (
	"sync/atomic"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// rotation is the way from one root of keys to another. Reporters make other keys of what they hold, each at its time;
// what one endpoint holds has keys of one root. Until the last has moved, requests are looked up with both. A reporter that the picker does
// not reach can move later, so that tickets are signed with both until the next rotation.
type rotation struct {
	from  kvblock.Seed
	moved atomic.Bool // all endpoints have
}

// next is the last rotation in the view that follows with a spec. One that begins ends the one before: an
// endpoint that has not moved twice is not found until it has.
func (v *view) next(spec *Spec) *rotation {
	if v.spec.Seed != spec.Seed {
		return &rotation{from: v.spec.Seed}
	}
	return v.rotation
}

func (v *view) rotating() bool { return v.rotation != nil && !v.rotation.moved.Load() }

// Moved sets the roots of the keys that a pool's endpoints have, by the roots' ids.
func (p *Picker) Moved(pool string, roots []string) {
	for _, v := range p.current.Load().pools {
		if v.name != pool || !v.rotating() {
			continue
		}
		for _, id := range roots {
			if id != v.keyID {
				return
			}
		}
		v.rotation.moved.Store(true)
		v.log.Info("All endpoints have keys of the new root", "pool", v.spec.Name, "key", v.keyID)
	}
}

// root of the keys of a request, and formerRoot while keys are rotated.
func (v *view) root(r *openai.Request) kvblock.Key {
	return v.spec.Seed.Root(v.identity(r.Model), r.CacheSalt)
}

func (v *view) formerRoot(r *openai.Request) kvblock.Key {
	return v.rotation.from.Root(v.identity(r.Model), r.CacheSalt)
}

// lookUp finds the matches of s.holders. Keys of two roots have nothing in common, so that of two matches of an endpoint
// the longer one is what it holds.
func (v *view) lookUp(s *scratch, p *prompt) {
	s.matches = resize(s.matches, len(s.holders))
	v.index.Match(v.usable(p.keys, p.tokens), s.holders, s.matches)
	if len(p.former) > 0 {
		v.lookUpFormer(s, p)
	}
	for i := range s.matches {
		if v.members[s.index[i]].sleep.discarded() {
			s.matches[i] = kvindex.Match{}
			continue
		}
		m := v.members[s.index[i]]
		s.matches[i] = v.whole(m, m.reloads.cut(p.adapter, p.keys, s.matches[i]), p.tokens)
	}
	v.lookUpFurther(s, p)
}

// lookUpFormer takes the matches by the former root's keys where they are longer.
func (v *view) lookUpFormer(s *scratch, p *prompt) {
	former := make([]kvindex.Match, len(s.holders))
	v.index.Match(v.usable(p.former, p.tokens), s.holders, former)
	for i := range former {
		if former[i].Blocks() > s.matches[i].Blocks() {
			s.matches[i] = former[i]
		}
	}
}
