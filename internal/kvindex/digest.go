package kvindex

import (
	"math/bits"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// DigestBuckets is the number of buckets of a digest.
const DigestBuckets = 256

// Digest is a small checksum of the blocks of a holder in one (tier, group). Two digests are equal if
// the blocks are equal, regardless of the order of changes; otherwise they almost never are. It counts announcements: a key
// under two hashes counts twice, further copies under one hash do not count.
type Digest struct {
	// Blocks is the number of (hash, key) with a copy. It wraps as the sums do, where more are removed than were added.
	Blocks uint64
	// Sums are the wrapping sums of the mixed keys by bucket.
	Sums [DigestBuckets]uint64
}

// Bucket is the bucket of a key.
func Bucket(key kvblock.Key) int { return int(scramble(uint64(key)) >> 56) }

// Add counts a key whose first copy was stored.
func (d *Digest) Add(key kvblock.Key) {
	m := scramble(uint64(key))
	d.Sums[m>>56] += m
	d.Blocks++
}

// Remove counts a key whose last copy was removed.
func (d *Digest) Remove(key kvblock.Key) {
	m := scramble(uint64(key))
	d.Sums[m>>56] -= m
	d.Blocks--
}

// Diff appends the buckets in which two digests differ to dst.
func (d *Digest) Diff(other *Digest, dst []int) []int {
	for i := range d.Sums {
		if d.Sums[i] != other.Sums[i] {
			dst = append(dst, i)
		}
	}
	return dst
}

// scramble spreads 64 bits over 64 bits, one to one. Reporters and pickers must agree on it.
func scramble(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	return x
}

// blend folds a secret-salted product of x to 64 bits. It places keys in tables, so that clients cannot
// choose keys that collide there.
func blend(x, salt uint64) uint64 {
	hi, lo := bits.Mul64(x^salt, 0x9e3779b97f4a7c15)
	return hi ^ lo
}
