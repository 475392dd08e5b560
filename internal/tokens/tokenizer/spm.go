package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// spaceMark replaces a space in the vocabularies of sentencepiece.
const spaceMark = "▁"

// spm is what a vocabulary in the style of sentencepiece has: tokens are text, a text is mostly one word, and what is
// not in the vocabulary falls back to tokens for its bytes, or to one for anything unknown.
type spm struct {
	ascii  [utf8.RuneSelf]uint32 // tokens of single characters; noID for none
	bytes  [256]uint32           // tokens of bytes; noID for none
	byByte bool                  // characters without a token become tokens of bytes, where there are those
	unk    uint32                // noID for none: what is unknown is dropped
	fuse   bool                  // unknown characters in a row are one unk

	// meta is set by the pre-tokenizer Metaspace.
	meta metaspace
	// afterSpaces: words end behind spaces, those that the normalizer has left.
	afterSpaces bool

	// cuts: a word can be cut between two runes unless they are in joined, or the second of them is unknown.
	cuts   bool
	joined runePairs
	// joinedToMark are the runes, other than the mark itself, that are joined to a space mark behind them.
	joinedToMark []rune
}

// metaspace puts a mark where spaces are, and before texts.
type metaspace struct {
	on    bool
	split bool // words begin at marks
	mark  string
	// The mark is put before each piece of text between added tokens, or only the first, unless it begins with one.
	always, first bool
}

// singles finds the tokens of single characters and of bytes.
func (m *spm) singles(l *loader) error {
	find := func(s string) uint32 {
		if id, ok := l.id(s); ok {
			return id
		}
		return noID
	}
	for r := range m.ascii {
		m.ascii[r] = find(string(rune(r)))
	}
	all := m.byByte
	for b := range m.bytes {
		m.bytes[b] = find(fmt.Sprintf("<0x%02X>", b))
		all = all && m.bytes[b] != noID
	}
	if l.hasUnk {
		if m.unk = find(l.unk); m.unk == noID && !all {
			return fmt.Errorf("%w: unk_token %q is not in the vocabulary", ErrInvalid, l.unk)
		}
	}
	// Where some characters vanish, or byte tokens precede an unknown one, borders are not reliable.
	m.cuts = all || !m.byByte && m.unk != noID && find(spaceMark) != noID
	return nil
}

// join takes the merge of two tokens into account.
func (m *spm) join(a, b uint32, left, right string) {
	x, _ := utf8.DecodeLastRuneInString(left)
	y, _ := utf8.DecodeRuneInString(right)
	m.joined.add(x, y)
	if mark, _ := utf8.DecodeRuneInString(spaceMark); y == mark && x != mark && !slices.Contains(m.joinedToMark, x) {
		m.joinedToMark = append(m.joinedToMark, x)
	}
	// A token whose bytes differ from its text can merge with anything.
	if a == m.unk || b == m.unk || m.standsForByte(left) || m.standsForByte(right) {
		m.cuts = false
	}
}

// standsForByte reports whether a text is written like <0x0A>.
func (m *spm) standsForByte(s string) bool {
	return m.byByte && len(s) == len("<0x00>") && strings.HasPrefix(s, "<0x") && s[5] == '>'
}

// symbols appends the tokens of w's characters to ids.
func (m *spm) symbols(v *vocab, ids []uint32, w string) []uint32 {
	unknown := false // one is pending: it precedes the next known character, but follows bytes
	for i := 0; i < len(w); {
		id, n := noID, 1
		if w[i] < utf8.RuneSelf {
			id = m.ascii[w[i]]
		} else {
			_, n = utf8.DecodeRuneInString(w[i:])
			if known, ok := v.id(w[i : i+n]); ok {
				id = known
			}
		}
		switch {
		case id != noID:
			if unknown {
				ids, unknown = append(ids, m.unk), false
			}
			ids = append(ids, id)
		case m.byByte && m.hasBytes(w[i:i+n]):
			for _, b := range []byte(w[i : i+n]) {
				ids = append(ids, m.bytes[b])
			}
		case m.unk != noID:
			if unknown && !m.fuse {
				ids = append(ids, m.unk)
			}
			unknown = true
		}
		i += n
	}
	if unknown {
		ids = append(ids, m.unk)
	}
	return ids
}

func (m *spm) hasBytes(s string) bool {
	for _, b := range []byte(s) {
		if m.bytes[b] == noID {
			return false
		}
	}
	return true
}

// canCut reports whether no merge can reach over the border between the runes x and y.
func (m *spm) canCut(v *vocab, x, y rune) bool {
	if !m.cuts || m.joined.has(x, y) {
		return false
	}
	if m.byByte { // of all bytes, or cuts were not set
		return true
	}
	if y < utf8.RuneSelf {
		return m.ascii[y] != noID
	}
	var b [utf8.UTFMax]byte
	_, ok := v.id(string(b[:utf8.EncodeRune(b[:], y)]))
	return ok
}

// spmWords appends the ids of a normalized piece.
func (e *encoder) spmWords(s string) {
	m := e.t.spm
	if m.meta.on {
		s = e.metaspace(s)
	}
	switch {
	case m.meta.split:
		for start := 0; start < len(s); {
			end := len(s)
			if n := strings.Index(s[start+1:], m.meta.mark); n >= 0 {
				end = start + 1 + n
			}
			e.spmPiece(s[start:end])
			start = end
		}
	case m.afterSpaces:
		for start := 0; start < len(s); {
			end := len(s)
			if n := strings.IndexByte(s[start:], ' '); n >= 0 {
				end = start + n + 1
			}
			e.spmPiece(s[start:end])
			start = end
		}
	default:
		e.spmPiece(s)
	}
}

// metaspace is s with marks for spaces and, where the model wants one, a mark before it.
func (e *encoder) metaspace(s string) string {
	m := &e.t.spm.meta
	s = e.replace(&e.marked, s, " ", m.mark)
	if s != "" && (m.always && e.at != atInside || m.first && e.at == atText) && !strings.HasPrefix(s, m.mark) {
		s = e.marked.prepend(s, m.mark)
	}
	return s
}

// spmPiece appends the ids of s, which the model treats as one word. It is encoded word by word where no merge can cross
// the border: before space marks, except for those behind a few characters.
func (e *encoder) spmPiece(s string) {
	if e.spend(len(s)) || s == "" {
		return
	}
	m := e.t.spm
	start := 0
	for i := 0; m.cuts; {
		for strings.HasPrefix(s[i:], spaceMark) {
			i += len(spaceMark)
		}
		n := strings.Index(s[i:], spaceMark)
		if n < 0 {
			break
		}
		i += n
		if len(m.joinedToMark) > 0 {
			if r, _ := utf8.DecodeLastRuneInString(s[:i]); slices.Contains(m.joinedToMark, r) {
				continue
			}
		}
		if e.spend(1) {
			return
		}
		e.word(s, start, i)
		start = i
	}
	e.word(s, start, len(s))
}

// longWord appends the ids of a word that is too long for the table of known words. Without spaces a text is one such,
// whatever its length: it is cut where that changes nothing.
func (e *encoder) longWord(w string) {
	start := 0
	if m := e.t.spm; m != nil && m.cuts {
		last, n := utf8.DecodeRuneInString(w)
		for i := n; i < len(w); i += n {
			var r rune
			r, n = utf8.DecodeRuneInString(w[i:])
			if e.spend(n) {
				return
			}
			if m.canCut(&e.t.vocab, last, r) {
				e.word(w, start, i)
				start = i
			}
			last = r
		}
	}
	switch {
	case start > 0:
		e.word(w, start, len(w))
	case len(w) > MaxWord:
		e.err = ErrText
	default:
		e.merge(w)
	}
}

// runePairs is a set of pairs of runes.
type runePairs struct {
	ascii [utf8.RuneSelf][2]uint64 // by the first rune: a bit for each second one
	slots []uint64                 // open addressing: the pair, 0 for none
	mask  uint64
	n     int
}

func runePair(x, y rune) uint64 { return 1<<63 | uint64(x)<<32 | uint64(y) }

func (p *runePairs) add(x, y rune) {
	if x < utf8.RuneSelf && y < utf8.RuneSelf {
		p.ascii[x][y>>6] |= 1 << (y & 63)
		return
	}
	if 3*(p.n+1) > 2*len(p.slots) {
		old := p.slots
		p.slots = make([]uint64, max(64, 2*len(old)))
		p.mask = uint64(len(p.slots) - 1)
		for _, k := range old {
			if k != 0 {
				*p.slot(k) = k
			}
		}
	}
	if s := p.slot(runePair(x, y)); *s == 0 {
		*s = runePair(x, y)
		p.n++
	}
}

func (p *runePairs) slot(k uint64) *uint64 {
	for i := mix(k) & p.mask; ; i = (i + 1) & p.mask {
		if p.slots[i] == k || p.slots[i] == 0 {
			return &p.slots[i]
		}
	}
}

func (p *runePairs) has(x, y rune) bool {
	if x < utf8.RuneSelf && y < utf8.RuneSelf {
		return p.ascii[x][y>>6]&(1<<(y&63)) != 0
	}
	return len(p.slots) > 0 && *p.slot(runePair(x, y)) != 0
}
