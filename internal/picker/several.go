package picker

import (
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// A request can have several prompts, which one engine computes one after the other: the choice looks at the blocks of
// all of them. It can also ask for several answers to each prompt.

// maxPrompts is how many prompts of a request are matched. The tokens of further ones are counted.
const maxPrompts = 64

// further is a prompt behind the first of a request.
type further struct {
	keys   []kvblock.Key // of its whole blocks
	tokens int
	shared int // blocks in common with one of the prompts before it
}

// add takes the next further prompt, as long as there are not too many.
func (p *prompt) add(keys []kvblock.Key, tokens, blockTokens int) {
	if len(p.more) >= maxPrompts-1 || p.total()+tokens > maxKeyed {
		p.others += tokens
		return
	}
	keys = keys[:min(len(keys), tokens/blockTokens)]
	p.more = append(p.more, further{keys, tokens, p.shared(keys)})
}

// addIDs is add for a prompt given by its ids.
func (p *prompt) addIDs(ids []uint32, chain tokenizer.Chain) {
	p.add(kvblock.AppendKeys(nil, chain.Root, ids[:min(len(ids), maxKeyed)], chain.BlockTokens), len(ids), chain.BlockTokens)
}

// total is the number of tokens of all prompts that are matched.
func (p *prompt) total() int {
	n := p.tokens
	for i := range p.more {
		n += p.more[i].tokens
	}
	return n
}

// usableBlocks is how many blocks of all prompts an engine can find: the last token of each is computed.
func (p *prompt) usableBlocks(blockTokens int) int {
	n := max(0, p.tokens-1) / blockTokens
	for i := range p.more {
		n += max(0, p.more[i].tokens-1) / blockTokens
	}
	return n
}

// shared is how many blocks a prompt has in common with the prompt of p that is most like it.
func (p *prompt) shared(keys []kvblock.Key) int {
	most := sameKeys(keys, p.keys)
	for i := range p.more {
		most = max(most, sameKeys(keys, p.more[i].keys))
	}
	return most
}

func sameKeys(a, b []kvblock.Key) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// lookUpFurther adds to s.matches what the endpoints hold of the prompts behind the first. Such a prompt finds the blocks
// of those before it as well, because the engine caches them when it schedules these.
func (v *view) lookUpFurther(s *scratch, p *prompt) {
	for n := range p.more {
		one := &p.more[n]
		s.further = resize(s.further, len(s.holders))
		v.index.Match(v.usable(one.keys, one.tokens), s.holders, s.further)
		for i := range s.further {
			m, match := v.members[s.index[i]], s.further[i]
			if m.sleep.discarded() {
				match = kvindex.Match{}
			}
			match = m.reloads.cut(p.adapter, one.keys, match)
			match.Speculative += uint32(max(0, one.shared-match.Blocks())) // less than maxKeyed
			s.matches[i] = s.matches[i].Plus(v.whole(m, match, one.tokens))
		}
	}
}

// expected is how many cached tokens the answer's usage should count. Of several choices the engine names the last one to
// end, or in a stream the first one to begin; all but the first find the entire prompt, in blocks.
func (v *view) expected(m *member, state *pickState, r *openai.Request, question *policy.Request, c *policy.Candidate) int {
	if r.N <= 1 || r.Stream || state.noRead || len(state.keys) == 0 || len(r.Prompts) > 1 {
		return question.MatchTokens(c)
	}
	whole := v.whole(m, kvindex.Match{Speculative: uint32(len(state.keys))}, state.tokens) // at most maxKeyed
	return whole.Blocks() * v.spec.BlockTokens
}

// assumption is that a target will hold the blocks of a prompt.
type assumption struct {
	guess     *kvindex.Guess
	published *replicas.Assumption // nil when the peers were not notified
}

// assume speculates that the target holds the blocks of the request's prompts, at most until some time. d.mu is held, or
// d is not shared yet.
func (d *Decision) assume(t *Target, until time.Time) {
	last, ok := kvblock.Key(0), false
	assume := func(keys []kvblock.Key) (a assumption) {
		if keys = t.member.storable(keys); len(keys) > 0 {
			last, ok = keys[len(keys)-1], true
			a = assumption{d.view.index.Speculate(t.member.holder, keys), d.publishAssumption(keys, until)}
		}
		return a
	}
	d.assumed = assume(d.keys)
	for _, keys := range d.more {
		d.moreAssumed = append(d.moreAssumed, assume(keys))
	}
	if ok {
		d.view.pending.add(d, last, until)
	}
}

// endSpeculation takes back what was assumed. d.mu is held.
func (d *Decision) endSpeculation() {
	d.view.pending.remove(d)
	d.withdraw(&d.assumed)
	for i := range d.moreAssumed {
		d.withdraw(&d.moreAssumed[i])
	}
	d.moreAssumed = nil
}

func (d *Decision) withdraw(a *assumption) {
	a.guess.Withdraw()
	d.view.peers.Withdraw(a.published)
	*a = assumption{}
}
