package tokenizer

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// nfcTables are the canonical compositions as the reference library knows them: Unicode 9, without the limit on
// combining marks in a row that other implementations have.
type nfcTables struct {
	combining map[rune]uint8
	decompose map[rune][2]rune
	compose   map[[2]rune]rune
	// loud has a bit for each rune that can change beside others or by itself: one with a combining class, one that
	// NFC replaces, one that can be the second of a composition. All other runes stay as they are, and nothing passes
	// over them.
	loud [(utf8.MaxRune + 1) / 64]uint64
}

const (
	hangulBase, hangulEnd = 0xac00, 0xd7a4
	jamoL, jamoLEnd       = 0x1100, 0x1113
	jamoV, jamoVEnd       = 0x1161, 0x1176
	jamoT, jamoTEnd       = 0x11a7, 0x11c3 // jamoT itself is not one
	jamoVs, jamoTs        = jamoVEnd - jamoV, jamoTEnd - jamoT
)

var nfcTable = sync.OnceValue(func() *nfcTables {
	t := &nfcTables{combining: map[rune]uint8{}, decompose: map[rune][2]rune{}, compose: map[[2]rune]rune{}}
	loud := func(r rune) { t.loud[r>>6] |= 1 << (r & 63) }
	next := func(b *[]byte) rune {
		v, n := binary.Uvarint(*b)
		*b = (*b)[n:]
		return rune(v)
	}
	r, b := rune(0), []byte(combiningRuns)
	for len(b) > 0 {
		r += next(&b)
		t.combining[r] = b[0]
		b = b[1:]
		loud(r)
	}
	r, b = 0, []byte(decompositionRuns)
	for len(b) > 0 {
		r += next(&b)
		pair := [2]rune{next(&b), next(&b)}
		t.decompose[r] = pair
		if b[0] == 1 {
			t.compose[pair] = r
			loud(pair[1])
		} else {
			loud(r)
		}
		b = b[1:]
	}
	for r := rune(jamoV); r < jamoVEnd; r++ {
		loud(r)
	}
	for r := rune(jamoT + 1); r < jamoTEnd; r++ {
		loud(r)
	}
	return t
})

func (t *nfcTables) isLoud(r rune) bool { return t.loud[r>>6]&(1<<(r&63)) != 0 }

// nfc is the normalization form C of s, which must be UTF-8. It looks at the context as it goes, and sets ErrText where
// more than maxMarks bytes would have to be normalized together; the answer is meaningless then.
func (e *encoder) nfc(s string) string {
	i := 0
	for i < len(s) && s[i] < utf8.RuneSelf {
		i++
	}
	if i == len(s) {
		return s
	}
	t := nfcTable()
	var out strings.Builder
	var work []composing
	copied, quiet := 0, max(i-1, 0) // quiet is where the last quiet rune begins
	for i < len(s) {
		if s[i] < utf8.RuneSelf {
			quiet = i
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if !t.isLoud(r) {
			quiet = i
			i += n
			continue
		}
		// What is between two quiet runes, the first of them included, is normalized by itself.
		end := i + n
		for end < len(s) && end-quiet <= maxMarks {
			r, n := utf8.DecodeRuneInString(s[end:])
			if !t.isLoud(r) {
				break
			}
			end += n
		}
		if end-quiet > maxMarks {
			e.err = ErrText
		}
		if e.spend(end - quiet) {
			return s
		}
		out.WriteString(s[copied:quiet])
		work = t.normalize(work[:0], s[quiet:end])
		for _, c := range work {
			out.WriteRune(c.r)
		}
		copied, quiet, i = end, end, end
	}
	if copied == 0 {
		return s
	}
	out.WriteString(s[copied:])
	return out.String()
}

// composing is a rune with its combining class.
type composing struct {
	r     rune
	class uint8
}

// normalize appends s to work, decomposed, sorted and composed (Unicode Standard, 3.11, D117).
func (t *nfcTables) normalize(work []composing, s string) []composing {
	for _, r := range s {
		work = t.appendDecomposed(work, r)
	}
	for i := 0; i < len(work); {
		j := i
		for j < len(work) && work[j].class != 0 {
			j++
		}
		if j > i+1 {
			slices.SortStableFunc(work[i:j], func(a, b composing) int { return int(a.class) - int(b.class) })
		}
		i = j + 1
	}
	out := work[:0]
	starter := -1
	for _, c := range work {
		if starter >= 0 {
			last := out[len(out)-1].class
			adjacent := starter == len(out)-1
			if adjacent || last != 0 && last < c.class {
				if r, ok := t.composed(out[starter].r, c.r); ok {
					out[starter].r = r
					continue
				}
			}
		}
		if c.class == 0 {
			starter = len(out)
		}
		out = append(out, c)
	}
	return out
}

func (t *nfcTables) appendDecomposed(work []composing, r rune) []composing {
	if r >= hangulBase && r < hangulEnd {
		x := r - hangulBase
		work = append(work, composing{jamoL + x/(jamoVs*jamoTs), 0}, composing{jamoV + x/jamoTs%jamoVs, 0})
		if x%jamoTs != 0 {
			work = append(work, composing{jamoT + x%jamoTs, 0})
		}
		return work
	}
	if pair, ok := t.decompose[r]; ok {
		work = t.appendDecomposed(work, pair[0])
		if pair[1] != 0 {
			work = t.appendDecomposed(work, pair[1])
		}
		return work
	}
	return append(work, composing{r, t.combining[r]})
}

func (t *nfcTables) composed(a, b rune) (rune, bool) {
	if a >= jamoL && a < jamoLEnd && b >= jamoV && b < jamoVEnd {
		return hangulBase + ((a-jamoL)*jamoVs+(b-jamoV))*jamoTs, true
	}
	if a >= hangulBase && a < hangulEnd && (a-hangulBase)%jamoTs == 0 && b > jamoT && b < jamoTEnd {
		return a + (b - jamoT), true
	}
	r, ok := t.compose[[2]rune{a, b}]
	return r, ok
}
