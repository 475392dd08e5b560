package enginemodel

import (
	"encoding/binary"
	"math/bits"
)

// Hash identifies a full block together with every token before it. Zero is no hash.
type Hash uint64

// Chain computes block hashes. Chains with different seeds give unrelated hashes, as engine processes without a fixed
// hash seed do. The mix is not cryptographic.
type Chain struct {
	seed uint64
}

// NewChain returns the chain with the given seed.
func NewChain(seed uint64) Chain {
	return Chain{seed: seed}
}

// Odd constants with balanced bits, taken from the digits of pi.
const (
	mix0 = 0x243f6a8885a308d3
	mix1 = 0x13198a2e03707345
	mix2 = 0xa4093822299f31d1
)

// fold multiplies to 128 bits and folds the halves.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// Root is the parent of first blocks: it depends on the LoRA adapter's name and the cache salt, and both can
// be empty. It is not itself the hash of a block.
func (c Chain) Root(adapter, salt string) Hash {
	h := fold(c.seed^mix0, mix1)
	h = foldString(h, adapter)
	h = foldString(h, salt)
	return nonZero(h)
}

// Next is the hash of the block that holds tokens and follows the block parent.
func (c Chain) Next(parent Hash, tokens []uint32) Hash {
	h := fold(uint64(parent)^mix0, c.seed^mix2)
	for len(tokens) >= 2 {
		h = fold(h^(uint64(tokens[0])|uint64(tokens[1])<<32), mix1)
		tokens = tokens[2:]
	}
	if len(tokens) == 1 {
		h = fold(h^uint64(tokens[0]), mix2)
	}
	return nonZero(fold(h, mix0))
}

// Hashes appends the hashes of the full blocks of tokens, blockSize tokens each, to dst.
func (c Chain) Hashes(dst []Hash, root Hash, tokens []uint32, blockSize int) []Hash {
	parent := root
	if len(dst) > 0 {
		parent = dst[len(dst)-1]
	}
	for i := len(dst) * blockSize; i+blockSize <= len(tokens); i += blockSize {
		parent = c.Next(parent, tokens[i:i+blockSize])
		dst = append(dst, parent)
	}
	return dst
}

func foldString(h uint64, s string) uint64 {
	h = fold(h^uint64(len(s)), mix2)
	var b [8]byte
	for len(s) > 0 {
		clear(b[:])
		n := copy(b[:], s)
		s = s[n:]
		h = fold(h^binary.LittleEndian.Uint64(b[:]), mix1)
	}
	return h
}

func nonZero(h uint64) Hash {
	if h == 0 {
		return 1
	}
	return Hash(h)
}
