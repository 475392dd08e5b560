// Package kvblock names blocks of KV cache: chained 64-bit keys over token ids, and the tiers blocks lie in.
//
// A block is a fixed number of tokens (blockTokens) whose KV tensors an engine caches as a unit. Its key depends
// on every token before it, so that equal keys mean equal prefixes:
//
//	key[i] = mix(key[i-1], tokens of block i, extras of block i),  key[-1] = root(seed, model or adapter, salt)
//
// The picker computes keys both from requests and from the token ids in engine events, so the engines' block size, hash
// algorithm and hash seed need not match its own. The mix is fast, not cryptographic: a collision mis-ranks a hint. The
// seed keeps keys from being compared across pools.
package kvblock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
)

// Key identifies a block together with everything before it. Zero is no key.
type Key uint64

// MinSeedBytes is the least entropy a seed is made from.
const MinSeedBytes = 32

// Seed is the secret root of a pool's keys.
type Seed struct {
	secret [sha256.Size]byte
}

// NewSeed derives a seed from a secret of at least MinSeedBytes bytes.
func NewSeed(secret []byte) (Seed, error) {
	if len(secret) < MinSeedBytes {
		return Seed{}, fmt.Errorf("key root has %d bytes, needs at least %d", len(secret), MinSeedBytes)
	}
	return Seed{secret: sha256.Sum256(secret)}, nil
}

// ID is a fingerprint of the seed, 16 hexadecimal digits, safe to publish.
func (s Seed) ID() string {
	mac := hmac.New(sha256.New, s.secret[:])
	mac.Write([]byte("kvasir key id"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// Root is the parent of a first block: one per base model or adapter, and per cache salt. It is the beginning of a
// SHA-256 over the seed and both names; names of up to 200 bytes together cost no memory.
func (s Seed) Root(model, salt string) Key {
	var space [248]byte
	b := append(space[:0], s.secret[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(model)))
	b = append(b, model...)
	b = append(b, salt...)
	digest := sha256.Sum256(b)
	return nonZero(binary.LittleEndian.Uint64(digest[:]))
}

// TenantSalt is the cache salt of a tenant's requests, 43 characters (256 bits). own is the salt that the client has set; empty
// if there is none. Without the seed no client can make the salt of another tenant, whatever it sets.
func (s Seed) TenantSalt(tenant, own string) string {
	mac := hmac.New(sha256.New, s.secret[:])
	mac.Write([]byte("kvasir tenant salt"))
	mac.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(tenant))))
	mac.Write([]byte(tenant))
	mac.Write([]byte(own))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Odd constants with no structure (hexadecimal digits of the fractional part of pi).
const (
	c0 = 0x243f6a8885a308d3
	c1 = 0x13198a2e03707345
	c2 = 0xa4093822299f31d1
	c3 = 0x082efa98ec4e6c89
	c4 = 0x452821e638d01377
	c5 = 0xbe5466cf34e90c6d
)

// Next is the key of the block that holds tokens and follows parent. extra is a digest of what else distinguishes blocks
// (multimodal items), 0 when there is nothing.
func Next(parent Key, tokens []uint32, extra uint64) Key {
	a, b := uint64(parent)^c0, uint64(parent)^c1^extra
	n := uint64(len(tokens))
	for len(tokens) >= 8 {
		t := tokens[:8:8]
		a = fold(a^pair(t[0], t[1]), pair(t[2], t[3])^c2)
		b = fold(b^pair(t[4], t[5]), pair(t[6], t[7])^c3)
		tokens = tokens[8:]
	}
	for _, t := range tokens {
		a = fold(a^uint64(t), c4)
	}
	return nonZero(fold(a^c4^n, b^c5))
}

// AppendKeys appends the keys of all full blocks of tokens to dst. The rest of the tokens has no key.
func AppendKeys(dst []Key, parent Key, tokens []uint32, blockTokens int) []Key {
	for len(tokens) >= blockTokens {
		parent = Next(parent, tokens[:blockTokens:blockTokens], 0)
		dst = append(dst, parent)
		tokens = tokens[blockTokens:]
	}
	return dst
}

// Digest folds bytes to the extra value of Next.
func Digest(h uint64, s string) uint64 {
	h ^= c2
	for i := range len(s) {
		h = fold(h^uint64(s[i]), c5)
	}
	return fold(h^uint64(len(s)), c3)
}

func pair(lo, hi uint32) uint64 { return uint64(lo) | uint64(hi)<<32 }

// fold multiplies to 128 bits and folds the halves.
func fold(x, y uint64) uint64 {
	hi, lo := bits.Mul64(x, y)
	return hi ^ lo
}

func nonZero(x uint64) Key {
	if x == 0 {
		return 1
	}
	return Key(x)
}
