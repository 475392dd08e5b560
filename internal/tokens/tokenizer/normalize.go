package tokenizer

import "strings"

// normalization is one step of what happens to text before it is cut into words.
type normalization struct {
	kind normKind
	from string // of replacing
	to   string // of replacing and prepending
}

type normKind uint8

const (
	normNFC normKind = iota
	normPrepend
	normReplace
)

// start reports where a text begins.
type start uint8

const (
	atText   start = iota // at the beginning of the entire text
	atPiece               // behind an added token
	atInside              // inside a piece that has been cut where that changes nothing else
)

// normalize appends the ids of a piece of text between added tokens.
func (e *encoder) normalize(s string) {
	for i := range e.t.norm {
		switch n := &e.t.norm[i]; n.kind {
		case normNFC:
			s = e.nfc(s)
		case normPrepend:
			if s != "" && e.at != atInside {
				s = e.normalized.prepend(s, n.to)
			}
		case normReplace:
			s = e.replace(&e.normalized, s, n.from, n.to)
		}
	}
	if e.err == nil {
		e.cut(e.t.normalized, s, (*encoder).words)
	}
}

// normalizedText is s as it is searched for among normalized texts.
func (t *Tokenizer) normalizedText(s string) string {
	for _, n := range t.norm {
		switch n.kind {
		case normNFC:
			s = new(encoder).nfc(s)
		case normPrepend:
			if s != "" {
				s = n.to + s
			}
		case normReplace:
			s = strings.ReplaceAll(s, n.from, n.to)
		}
	}
	return s
}

// scratch holds texts while they are worked on: two, used in turn.
type scratch struct {
	texts   [2][]byte
	current int
}

func (c *scratch) next() *[]byte {
	c.current = 1 - c.current
	return &c.texts[c.current]
}

// prepend is text before s, valid until the next call but one of prepend or replace.
func (c *scratch) prepend(s, text string) string {
	b := c.next()
	*b = append(append((*b)[:0], text...), s...)
	return view(*b)
}

// replace is s with to for each from, valid as prepend's answer is; s itself if the context ends before it is done.
func (e *encoder) replace(c *scratch, s, from, to string) string {
	n := strings.Index(s, from)
	if n < 0 {
		return s
	}
	b := c.next()
	out, rest := (*b)[:0], s
	for ; n >= 0 && !e.spend((n+len(from))>>2); n = strings.Index(rest, from) {
		out = append(append(out, rest[:n]...), to...)
		rest = rest[n+len(from):]
	}
	out = append(out, rest...)
	*b = out
	return view(out)
}

// shrink gives large buffers up.
func (c *scratch) shrink() {
	if cap(c.texts[0])+cap(c.texts[1]) > keepText {
		c.texts = [2][]byte{}
	}
}
