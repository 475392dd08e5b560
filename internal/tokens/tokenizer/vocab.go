package tokenizer

import (
	"math/bits"
)

// noID is no token.
const noID = ^uint32(0)

// vocab maps token ids to bytes and back. It is immutable once loaded.
type vocab struct {
	arena  []byte
	tokens []tokenSpan // by id
	slots  []wordSlot
	mask   uint64
}

// tokenSpan is a part of the arena.
type tokenSpan struct{ off, n uint32 }

// wordSlot is one entry of an open-addressed table; key 0 is a free one. 16 bytes, without pointers.
type wordSlot struct {
	// key is wordKey of the word. For words of up to 7 bytes it is the word.
	key uint64
	id  uint32
	// whole: BPE turns the word into just this token, or need not be asked.
	whole bool
}

// maxInline is the most bytes of a word that a key can hold.
const maxInline = 7

// wordKey is the key of s[beg:end], never 0: the bytes and their number, for a longer word a hash with the top bit set.
func wordKey(s string, beg, end int) uint64 {
	n := end - beg
	if n > maxInline {
		return hashWord(s[beg:end]) | 1<<63
	}
	if beg+8 <= len(s) {
		w := load64(s[beg:])
		return w&(1<<(8*n)-1) | uint64(n)<<56
	}
	w := uint64(n) << 56
	for i := range n {
		w |= uint64(s[beg+i]) << (8 * i)
	}
	return w
}

// load64 is the first 8 bytes of s, which must be there.
func load64(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// hashWord mixes a word of at least 8 bytes.
func hashWord(s string) uint64 {
	h := uint64(len(s)) * 0x9e3779b97f4a7c15
	last := load64(s[len(s)-8:])
	for len(s) > 8 {
		hi, lo := bits.Mul64(h^load64(s), 0xa0761d6478bd642f)
		h = hi ^ lo
		s = s[8:]
	}
	hi, lo := bits.Mul64(h^last, 0xe7037ed1a0b428db)
	return hi ^ lo
}

// mix spreads a key over all bits.
func mix(k uint64) uint64 {
	hi, lo := bits.Mul64(k, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

// tableSize is the number of slots for n entries: a power of two, filled at most to two thirds.
func tableSize(n int) int {
	return 1 << bits.Len(uint(n+n/2))
}

func (v *vocab) grow(n int) {
	v.slots = make([]wordSlot, tableSize(n))
	v.mask = uint64(len(v.slots) - 1)
}

// slot is where the word with key k is, or the free one where it would be.
func (v *vocab) slot(k uint64, word string) *wordSlot {
	for i := mix(k) & v.mask; ; i = (i + 1) & v.mask {
		s := &v.slots[i]
		if s.key == 0 || s.key == k && (k>>63 == 0 || v.bytes(s.id) == word) {
			return s
		}
	}
}

// add puts a token into the table; its bytes must be in the arena. A word added twice keeps its first id.
func (v *vocab) add(id uint32) {
	word := v.bytes(id)
	k := wordKey(word, 0, len(word))
	if s := v.slot(k, word); s.key == 0 {
		*s = wordSlot{key: k, id: id}
	}
}

// id of a word.
func (v *vocab) id(word string) (uint32, bool) {
	if word == "" {
		return 0, false
	}
	s := v.slot(wordKey(word, 0, len(word)), word)
	return s.id, s.key != 0
}

// bytes of a token; empty for an id that is none.
func (v *vocab) bytes(id uint32) string {
	if int(id) >= len(v.tokens) {
		return ""
	}
	t := v.tokens[id]
	return view(v.arena[t.off : t.off+t.n])
}

// pairTable maps two adjacent tokens to their merge. It is immutable once loaded.
type pairTable struct {
	slots []pairSlot
	mask  uint64
}

// pairSlot is one entry of an open-addressed table; merge none is a free one.
type pairSlot struct {
	pair  uint64
	merge uint64
}

// none is no merge. A merge is its rank in the upper and the token it makes in the lower 32 bits, so that of two
// merges the lower number has precedence.
const none = ^uint64(0)

func newPairTable(n int) pairTable {
	p := pairTable{slots: make([]pairSlot, tableSize(n))}
	p.mask = uint64(len(p.slots) - 1)
	for i := range p.slots {
		p.slots[i].merge = none
	}
	return p
}

func (p *pairTable) put(left, right uint32, merge uint64) {
	pair := uint64(left)<<32 | uint64(right)
	i := mix(pair) & p.mask
	for p.slots[i].merge != none && p.slots[i].pair != pair {
		i = (i + 1) & p.mask
	}
	p.slots[i] = pairSlot{pair, merge}
}

func (p *pairTable) get(left, right uint32) uint64 {
	pair := uint64(left)<<32 | uint64(right)
	for i := mix(pair) & p.mask; ; i = (i + 1) & p.mask {
		s := &p.slots[i]
		if s.pair == pair || s.merge == none {
			return s.merge
		}
	}
}

// byteLevel is the alphabet in which byte-level vocabularies are written: a printable character for each byte.
var byteLevel = func() (t struct {
	runes [256]rune
	bytes [512]int16 // by rune; -1 for none
}) {
	for i := range t.bytes {
		t.bytes[i] = -1
	}
	extra := rune(256)
	for b := range t.runes {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			r = extra
			extra++
		}
		t.runes[b] = r
		t.bytes[r] = int16(b)
	}
	return t
}()

// appendBytes appends the bytes that s encodes; ok is false, and dst unchanged, when s is not in the alphabet.
func appendBytes(dst []byte, s []byte) (out []byte, ok bool) {
	n := len(dst)
	for i := 0; i < len(s); i++ {
		r := rune(s[i])
		if r >= 0x80 {
			if i+1 == len(s) || r < 0xc2 || r > 0xc7 { // beyond U+01FF
				return dst[:n], false
			}
			i++
			r = r&0x1f<<6 | rune(s[i]&0x3f)
		}
		b := byteLevel.bytes[r]
		if b < 0 {
			return dst[:n], false
		}
		dst = append(dst, byte(b))
	}
	return dst, true
}
