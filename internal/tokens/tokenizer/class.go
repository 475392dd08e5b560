package tokenizer

import (
	"encoding/binary"
	"sync"
	"unicode/utf8"
)

// classASCII and classPages hold the classes of every code point, by pages of 256, equal pages shared. They are
// filled by loadClasses.
var (
	classASCII [utf8.RuneSelf]uint16
	classPages [(utf8.MaxRune + 1) >> 8]*[256]uint16
)

// loadClasses unpacks the tables. Every Tokenizer has called it.
var loadClasses = sync.OnceFunc(func() {
	shared := map[[256]uint16]*[256]uint16{}
	var page [256]uint16
	runs, left, class := []byte(classRuns), 0, uint16(0)
	for p := range classPages {
		for i := range page {
			for left == 0 {
				n, size := binary.Uvarint(runs)
				c, more := binary.Uvarint(runs[size:])
				left, class, runs = int(n), uint16(c), runs[size+more:]
			}
			page[i] = class
			left--
		}
		if shared[page] == nil {
			fresh := page
			shared[page] = &fresh
		}
		classPages[p] = shared[page]
	}
	copy(classASCII[:], classPages[0][:])
})

// classAt is the class and the length of the rune at s[i].
func classAt(s string, i int) (class uint16, size int) {
	if b := s[i]; b < utf8.RuneSelf {
		return classASCII[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classPages[r>>8][r&255], n
}

// runOf is the end of the run at i of runes that have a class of mask.
func runOf(s string, i int, mask uint16) int {
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if classASCII[b]&mask == 0 {
				return i
			}
			i++
			continue
		}
		c, n := classAt(s, i)
		if c&mask == 0 {
			return i
		}
		i += n
	}
	return i
}

// runNotOf is the end of the run at i of runes that have no class of mask.
func runNotOf(s string, i int, mask uint16) int {
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if classASCII[b]&mask != 0 {
				return i
			}
			i++
			continue
		}
		c, n := classAt(s, i)
		if c&mask != 0 {
			return i
		}
		i += n
	}
	return i
}

// byteSet is a set of bytes; 1 for those in it.
type byteSet [256]uint8

func bytesOf(has func(b byte) bool) (set byteSet) {
	for b := range set {
		if has(byte(b)) {
			set[b] = 1
		}
	}
	return set
}

// next is the first place from i on, and before limit, with a byte of the set; else limit.
func (set *byteSet) next(s string, i, limit int) int {
	s = s[:limit]
	for ; i+4 <= len(s); i += 4 {
		if set[s[i]]|set[s[i+1]]|set[s[i+2]]|set[s[i+3]] != 0 {
			break
		}
	}
	for i < len(s) && set[s[i]] == 0 {
		i++
	}
	return i
}
