package picker

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/internal/routinghistory"
)

// Approximate matching by what was routed where. It serves requests without keys, engines that send no events or are not
// trusted, and the strategy ApproximatePrefix. Texts are cut into chunks (package routinghistory), and each endpoint remembers
// the chunks that were routed to it.

const (
	// maxChunks of a prompt are matched in place of its keys.
	maxChunks = 4096
	// routedChunks is how many of them each endpoint is remembered for: 31,250 of 64 bytes are 500,000 tokens, about
	// what an 80 GB GPU caches for a model of 8B.
	routedChunks = 31_250
	// bytesPerToken estimates a prompt's length where its tokens are not known.
	bytesPerToken = 4
)

// chunking is how texts are cut, and how much of them is remembered.
type chunking struct {
	// bytes of a chunk; most chunks of a text count, and each endpoint is remembered for perEndpoint.
	bytes, most, perEndpoint int
	// fallback chunks stand in for keys, and can be keys.
	fallback bool
}

// history is what was routed to a pool's endpoints, cut in one way.
type history struct {
	chunking
	memories []*routinghistory.Memory // by endpoint, in the order of the view
}

// fallback is the place in view.histories of the one that stands in for keys.
const fallback = 0

// remember sets up the view's histories: the fallback history, and those that its strategy and its shadows match.
// Strategies that cut texts alike share one. Endpoints that stay keep their histories; histories that are no longer matched
// are deleted.
func (v *view) remember() {
	cuts := []chunking{fallback: {bytesPerToken * v.spec.BlockTokens, maxChunks, routedChunks, true}}
	v.history, cuts = historyOf(v.spec.Policy.Strategy, cuts)
	v.shadowHistories = make([]int, len(v.shadows))
	for i, s := range v.shadows {
		v.shadowHistories[i], cuts = historyOf(s.spec.Strategy, cuts)
	}
	v.histories = make([]history, len(cuts))
	for i, cut := range cuts {
		v.histories[i].chunking = cut
	}
	for _, m := range v.members {
		for i, memory := range m.routed.of(cuts) {
			v.histories[i].memories = append(v.histories[i].memories, memory)
		}
	}
}

// historyOf is the place among cuts of what a strategy matches, which it enters if it is new; fallback for one that
// matches no chunks.
func historyOf(c policy.Config, cuts []chunking) (int, []chunking) {
	if c.Type != policy.ApproximatePrefix {
		return fallback, cuts
	}
	a := &c.ApproximatePrefix
	cut := chunking{bytes: a.ChunkBytes, most: a.MaxChunks, perEndpoint: a.ChunksPerEndpoint}
	if known := slices.Index(cuts, cut); known >= 0 {
		return known, cuts
	}
	return len(cuts), append(cuts, cut)
}

// memories are what was routed to one endpoint, by how it was cut. It is safe for concurrent use.
type memories struct {
	mu   sync.Mutex
	cuts []chunking
	all  []*routinghistory.Memory
}

// of returns the memory for each of cuts, in their order. Memories for others are forgotten.
func (m *memories) of(cuts []chunking) []*routinghistory.Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*routinghistory.Memory, len(cuts))
	for i, cut := range cuts {
		if known := slices.Index(m.cuts, cut); known >= 0 {
			all[i] = m.all[known]
		} else {
			all[i] = routinghistory.NewMemory(cut.perEndpoint)
		}
	}
	m.cuts, m.all = cuts, all
	return all
}

// clear forgets everything: the endpoint has emptied its cache.
func (m *memories) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, memory := range m.all {
		memory.Clear()
	}
}

// approximate cuts the request into chunks, into s.chunks, and matches it with what was routed before. A request without
// keys is matched by chunks of its text, each as long as a block should be. A request with keys is matched by these at
// endpoints that announce nothing, or whose matches are distrusted.
func (v *view) approximate(s *scratch, p *prompt) {
	v.cut(s, p)
	v.matchRouted(s, p)
}

// matchRouted matches s.chunks with what was routed before.
func (v *view) matchRouted(s *scratch, p *prompt) {
	chunks := s.chunks[fallback]
	if len(chunks) == 0 || p.noRead {
		return
	}
	keyed := p.err == nil && !v.spec.NoEvents
	n := 0
	for c := range s.candidates {
		if keyed && !s.ignored[c] {
			continue
		}
		n = v.histories[fallback].memories[s.index[c]].Match(chunks, n)
		if match := &s.candidates[c].Match; n > match.Blocks() {
			*match = v.whole(v.members[s.index[c]], kvindex.Match{Speculative: uint32(n)}, p.tokens) // at most maxChunks
		}
	}
}

// cut cuts the request for all histories.
func (v *view) cut(s *scratch, p *prompt) {
	s.chunks = resize(s.chunks, len(v.histories))
	for h := range v.histories {
		to := &s.chunks[h]
		*to = (*to)[:0]
		switch cut := &v.histories[h].chunking; {
		case !cut.fallback:
			s.cutText(uint64(v.root(&s.request)), cut, to)
		case p.err != nil:
			if n := s.cutText(uint64(v.root(&s.request)), cut, to); n > 0 {
				p.source, p.tokens = TokensApproximate, max(1, n/bytesPerToken)
			}
		case v.spec.NoEvents || v.distrusts(s):
			for _, key := range p.keys[:min(len(p.keys), cut.most)] {
				*to = append(*to, routinghistory.Chunk(key))
			}
		}
	}
}

// distrusts reports whether trust in some candidate was lost for some requests: then all are remembered by their keys.
func (v *view) distrusts(s *scratch) bool {
	return slices.ContainsFunc(s.index, func(i int) bool { return v.members[i].trust.lost.Load() > 0 })
}

// cutText appends the chunks of the request's text. It returns the text's length in bytes.
func (s *scratch) cutText(root uint64, cut *chunking, to *[]routinghistory.Chunk) int {
	s.chain.Reset(root, cut.bytes, cut.most)
	n := addText(&s.chain, &s.request)
	*to = append(*to, s.chain.Chunks()...)
	return n
}

// matchHistory passes a strategy how much of the request was routed to each candidate before, by one of the histories. The
// fallback history counts nothing here, and neither does a request that cannot use cached blocks.
func (v *view) matchHistory(s *scratch, p *prompt, question *policy.Request, h int) {
	if h == fallback {
		return
	}
	if p.noRead {
		return
	}
	question.Chunks = len(s.chunks[h])
	n := 0
	for c := range s.candidates {
		n = v.histories[h].memories[s.index[c]].Match(s.chunks[h], n)
		s.candidates[c].Routed = n
	}
}

// keptChunks copies the chunks to remember of the request; nil if there are none.
func (s *scratch) keptChunks() [][]routinghistory.Chunk {
	var kept [][]routinghistory.Chunk
	for h, chunks := range s.chunks {
		if len(chunks) > 0 {
			if kept == nil {
				kept = make([][]routinghistory.Chunk, len(s.chunks))
			}
			kept[h] = slices.Clone(chunks)
		}
	}
	return kept
}

// addText adds the unmodified text of the first prompt, as far as it counts: the bytes of a conversation's earlier turns
// are the same in each request. It returns the number of all its bytes.
func addText(c *routinghistory.Chain, r *openai.Request) (n int) {
	if len(r.Prompts) > 0 {
		first := &r.Prompts[0]
		addTokens(c, first.Tokens)
		c.Add([]byte(first.Text[:min(len(first.Text), c.Rest())]))
		return tokenBytes*min(len(first.Tokens), maxKeyed) + min(len(first.Text), maxKeyed)
	}
	texts := [...][]byte{r.Tools, r.System, r.Messages[:max(0, len(r.Messages)-1)]} // without the bracket, where the next turn continues
	for _, text := range texts {
		c.Add(text)
		n += len(text)
	}
	return n
}

// tokenBytes are what a token counts as text.
const tokenBytes = 4

// addTokens adds token ids, each of them in little-endian bytes.
func addTokens(c *routinghistory.Chain, tokens []uint32) {
	var text [256 * tokenBytes]byte
	for len(tokens) > 0 && c.Rest() > 0 {
		n := min(len(tokens), len(text)/tokenBytes)
		for i, id := range tokens[:n] {
			binary.LittleEndian.PutUint32(text[tokenBytes*i:], id)
		}
		c.Add(text[:tokenBytes*n])
		tokens = tokens[n:]
	}
}
