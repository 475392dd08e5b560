package picker

import (
	"encoding/binary"

	"github.com/kvasir-dev/kvasir/internal/affinity"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

const (
	// maxChunks of a prompt are matched approximately.
	maxChunks = 4096
	// routedChunks is how many chunks each endpoint is remembered for: 31,250 of 64 bytes are 500,000 tokens, about
	// what an 80 GB GPU caches for a model of 8B.
	routedChunks = 31_250
	// bytesPerToken estimates a prompt's length where its tokens are not known.
	bytesPerToken = 4
)

// approximate matches a request against what was routed before: one without keys by chunks of its text, each as long as
// a block should be, and one with keys by these where nobody tells what engines hold, or is not believed. The chunks
// lie in s.chunks.
func (v *view) approximate(s *scratch, p *prompt, believed bool) {
	s.chunks = s.chunks[:0]
	switch {
	case p.err != nil:
		s.chain.Reset(uint64(v.root(&s.request)), bytesPerToken*v.spec.BlockTokens, maxChunks)
		n := addText(&s.chain, &s.request)
		s.chunks = append(s.chunks, s.chain.Chunks()...)
		if n > 0 {
			p.source, p.tokens = TokensApproximate, max(1, n/bytesPerToken)
		}
	case v.spec.NoEvents || v.trust.lost.Load():
		for _, key := range p.keys[:min(len(p.keys), maxChunks)] {
			s.chunks = append(s.chunks, affinity.Chunk(key))
		}
	}
	if len(s.chunks) == 0 || believed && p.err == nil && !v.spec.NoEvents {
		return
	}
	for c := range s.candidates {
		n := v.members[s.index[c]].routed.Match(s.chunks)
		if match := &s.candidates[c].Match; n > match.Blocks() {
			*match = kvindex.Match{Speculative: uint32(n)} //nolint:gosec // at most maxChunks
		}
	}
}

// addText adds the text of the first prompt, as it was sent: of a conversation, the bytes of its earlier turns are the
// same in each request. It gives the number of bytes.
func addText(c *affinity.Chain, r *openai.Request) (n int) {
	add := func(text []byte) {
		c.Add(text)
		n += len(text)
	}
	if len(r.Prompts) > 0 {
		first := &r.Prompts[0]
		var ids [4]byte
		for _, id := range first.Tokens[:min(len(first.Tokens), maxKeyed)] {
			binary.LittleEndian.PutUint32(ids[:], id)
			add(ids[:])
		}
		add([]byte(first.Text[:min(len(first.Text), maxKeyed)]))
		return n
	}
	add(r.Tools)
	add(r.System)
	if messages := r.Messages; len(messages) > 0 {
		add(messages[:len(messages)-1]) // without the bracket, where the next turn goes on
	}
	return n
}
