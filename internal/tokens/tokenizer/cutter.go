package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// cutter finds places where a text can be cut so that the ids of its parts equal the ids of the entire text. There are two
// kinds, both found by looking at a few bytes around them, so that a text that grows at its end keeps its cuts:
//
//   - before an added token, because texts between added tokens are independent anyway, and
//   - inside, where the model's rules end a word whatever comes before and behind.
//
// No added token reaches over a cut: the two bytes beside it are never neighbours inside one.
type cutter struct {
	// never: some added token looks at what is beside it.
	never bool
	// within has a bit for each two bytes that are neighbours inside an added token.
	within [256][4]uint64
	// eats has the last bytes of added tokens that swallow the spaces behind them.
	eats [256]bool
	// ends has the last bytes of added tokens behind which a piece of text begins that is not like the rest of one.
	ends [256]bool
	// inside is the kind of cuts besides those before added tokens.
	inside insideCuts
	// plain: cuts inside are between ASCII characters only.
	plain bool
	// marksSpaces: a space becomes a space mark before it is encoded.
	marksSpaces bool
	// Cuts before tokens are taken from minToken bytes on, others from minInside.
	minToken, minInside int
}

type insideCuts uint8

const (
	noCuts insideCuts = iota
	// wordCuts are those of the byte-level families whose splits are safe and at least one of them of words: behind a
	// letter before anything that is neither letter, mark nor number nor an apostrophe nor of the Chinese and Japanese
	// scripts (some models have rules for their runs), and before a space behind anything but space.
	wordCuts
	// runeCuts are those of sentencepiece: between two characters that no merge joins.
	runeCuts
)

// Parts shorter than these are not worth a look into a cache.
const (
	minTokenPart  = 256
	minInsidePart = 1024
)

func newCutter(t *Tokenizer) *cutter {
	c := &cutter{minToken: minTokenPart, minInside: minInsidePart}
	normalized := false
	for i := range t.added {
		a := &t.added[i]
		c.never = c.never || a.SingleWord
		normalized = normalized || a.Normalized
		content := a.Content
		if a.Normalized {
			content = t.normalizedText(content)
		}
		for j := 1; j < len(content); j++ {
			c.within[content[j-1]][content[j]>>6] |= 1 << (content[j] & 63)
		}
		last := content[len(content)-1]
		c.eats[last] = c.eats[last] || a.RStrip
		c.ends[last] = c.ends[last] || t.startMatters
	}
	switch {
	case t.spm != nil:
		if t.spm.cuts && !normalized && onlyMarks(t.norm) {
			c.inside = runeCuts
		}
		c.marksSpaces = t.spm.meta.on || slices.ContainsFunc(t.norm, func(n normalization) bool { return n.kind == normReplace })
	case onlyNFC(t.norm):
		safe, words := true, false
		for _, s := range t.splits {
			safe = safe && (s.safe || s.words)
			words = words || s.words
		}
		if safe && words {
			c.inside = wordCuts
		}
		c.plain = normalized && len(t.norm) > 0
	}
	return c
}

// onlyMarks reports whether the steps do no more than to put a mark for each space, and something before texts.
func onlyMarks(norm []normalization) bool {
	for _, n := range norm {
		if n.kind != normPrepend && n != (normalization{kind: normReplace, from: " ", to: spaceMark}) {
			return false
		}
	}
	return true
}

func onlyNFC(norm []normalization) bool {
	for _, n := range norm {
		if n.kind != normNFC {
			return false
		}
	}
	return true
}

// next is where the part of s that begins at from ends, and whether what follows begins inside a piece of text.
func (c *cutter) next(t *Tokenizer, s string, from int) (end int, inside bool) {
	return c.search(t, s, from, from, len(s))
}

// search is next among the places from q on and before limit; it returns limit if there is no cut.
func (c *cutter) search(t *Tokenizer, s string, from, q, limit int) (end int, inside bool) {
	if c.never {
		return limit, false
	}
	q = min(max(q, from+c.minToken), limit)
	tokensOnly := min(from+c.minInside, limit)
	if t.raw != nil {
		for q < tokensOnly {
			if q = t.raw.maybe(s, q, tokensOnly); q < tokensOnly {
				if c.beforeToken(t, s, q) {
					return q, false
				}
				q++
			}
		}
	}
	for q = max(q, tokensOnly); q < limit; q++ {
		if t.raw != nil && t.raw.first[s[q]] != 0 && c.beforeToken(t, s, q) {
			return q, false
		}
		if c.inside != noCuts && c.cutInside(t, s, q) {
			return q, true
		}
	}
	return limit, false
}

// beforeToken reports whether s can be cut at q because an added token begins there.
func (c *cutter) beforeToken(t *Tokenizer, s string, q int) bool {
	if !c.between(s, q) {
		return false
	}
	_, token := t.raw.match(s, q)
	return token >= 0 && !t.added[token].LStrip
}

// between reports whether no added token reaches over q, nor what it swallows.
func (c *cutter) between(s string, q int) bool {
	return q > 0 && c.within[s[q-1]][s[q]>>6]&(1<<(s[q]&63)) == 0 && !c.eats[s[q-1]]
}

// cutInside reports whether s can be cut at q, inside a piece of text.
func (c *cutter) cutInside(t *Tokenizer, s string, q int) bool {
	if !c.between(s, q) || c.ends[s[q-1]] || !utf8.RuneStart(s[q]) || c.plain && s[q-1]|s[q] >= utf8.RuneSelf {
		return false
	}
	x, _ := utf8.DecodeLastRuneInString(s[:q])
	y, _ := utf8.DecodeRuneInString(s[q:])
	if x == utf8.RuneError || y == utf8.RuneError {
		return false
	}
	before, behind := classOf(x), classOf(y)
	if c.inside == runeCuts {
		if y == ' ' && c.marksSpaces {
			y, _ = utf8.DecodeRuneInString(spaceMark)
		}
		return before&classS == 0 && t.spm.canCut(&t.vocab, x, y)
	}
	if y == ' ' {
		return before&classS == 0
	}
	if len(t.norm) > 0 && (x >= utf8.RuneSelf && nfcTable().isLoud(x) || y >= utf8.RuneSelf && nfcTable().isLoud(y)) {
		return false // a letter can become a letter and a mark
	}
	return before&classL != 0 && behind&(classL|classM|classN|classNumeric|classHan) == 0 && y != '\'' && (y < 0x3040 || y > 0x30ff)
}

func classOf(r rune) uint16 { return classPages[r>>8][r&255] }
