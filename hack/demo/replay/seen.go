package replay

import "github.com/kvasir-dev/kvasir/internal/sim/trace"

// blockTokens is the size of the engines' blocks.
const blockTokens = 16

// seen are the prompts of the trace that were sent, as a tree of their blocks. Its zero value is empty.
type seen struct {
	nodes map[edge]int
}

// edge leads from a node of the tree to the next block.
type edge struct{ from, block int }

// add adds a prompt of some tokens and returns how many of them, from the first on, were in the tree.
func (s *seen) add(blocks []int, tokens int) (held int) {
	if s.nodes == nil {
		s.nodes = map[edge]int{}
	}
	at, known := 0, true
	for _, block := range blocks {
		next, ok := s.nodes[edge{at, block}]
		if !ok {
			known = false
			next = len(s.nodes) + 1
			s.nodes[edge{at, block}] = next
		}
		if known {
			held += trace.BlockTokens
		}
		at = next
	}
	return min(held, tokens)
}

// whole is how many of the tokens of a prompt a cache gives that holds the first held of them: whole blocks, and never the last
// token, which the engine has to compute.
func whole(held, prompt int) int { return max(0, min(held, prompt-1)) / blockTokens * blockTokens }
