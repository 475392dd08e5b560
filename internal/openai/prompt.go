package openai

import (
	"bytes"
	"math"
	"slices"
	"strconv"
)

// MaxPrompts is the most prompts that one request can hold.
const MaxPrompts = 1 << 16

// part is the position of a prompt: a string of the body, or text[beg:end] if it is escaped, or tokens[beg:end].
type part struct {
	span
	isTokens bool
}

const (
	wrongPrompt = "must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
	wrongToken  = "token ids must be whole numbers from 0 to 4294967295"
	mixedChats  = "chats and other prompts cannot be mixed"
)

// prompt reads the prompt of a completion request or the input of an embeddings request, which begins with c.
func (p *parser) prompt(c byte) bool {
	r := p.r
	r.parts, r.tokens, r.text = r.parts[:0], r.tokens[:0], r.text[:0]
	p.promptSeen, p.promptBad = c != 'n', ""
	switch c {
	case 'n':
	case '"':
		s, ok := p.text(&r.text)
		r.parts = append(r.parts, part{span: s})
		return ok
	case '[':
		return p.promptList()
	default:
		p.promptBad = wrongPrompt
	}
	return p.skip(1)
}

// promptList reads a list; its first element determines the type of all.
func (p *parser) promptList() bool {
	r := p.r
	first, inner := p.ahead()
	if first == '-' || first-'0' <= 9 {
		r.parts = append(r.parts, part{isTokens: true})
		if !p.tokenList(1) {
			return false
		}
		r.parts[0].end = len(r.tokens)
		return true
	}
	if first == ']' {
		p.promptBad = "is empty"
	}
	chats := r.Route == Embeddings && (first == '{' || first == '[' && inner == '{')
	return p.array(1, func(c byte) bool {
		switch {
		case chats:
			if c != first {
				p.promptBad = mixedChats
			}
			return p.skip(2)
		case c != first || c != '"' && c != '[':
			p.promptBad = wrongPrompt
			return p.skip(2)
		case len(r.parts) == MaxPrompts:
			p.promptBad = "more than 65536 prompts"
			return p.skip(2)
		case c == '"':
			s, ok := p.text(&r.text)
			r.parts = append(r.parts, part{span: s})
			return ok
		}
		beg := len(r.tokens)
		if !p.tokenList(2) {
			return false
		}
		r.parts = append(r.parts, part{span: span{beg: beg, end: len(r.tokens)}, isTokens: true})
		return true
	})
}

// ahead is the first byte of the first element of the list at i, and that of its first element where it is a list
// too; i stays.
func (p *parser) ahead() (first, inner byte) {
	open := p.i
	p.i++
	if first = p.space(); first == '[' {
		p.i++
		inner = p.space()
	}
	p.i = open
	return first, inner
}

// countAhead is the size in bytes from which a list's ids are counted before they are read, so that the buffer grows
// once. Counting costs a fiftieth of reading.
const countAhead = 1 << 12

// tokenList appends the ids of the list at i to r.tokens. depth is the number of levels open around it.
func (p *parser) tokenList(depth int) bool {
	b, dst := p.b, p.r.tokens
	i := p.i + 1
	if rest := b[i:]; cap(dst)-len(dst) < len(rest) && len(rest) >= countAhead {
		if end := bytes.IndexByte(rest, ']'); end >= 0 {
			dst = slices.Grow(dst, bytes.Count(rest[:end], []byte{','})+1)
		}
	}
	p.i = i
	if p.space() == ']' {
		p.i++
		return true
	}
	for i = p.i; ; i++ {
		// At an element, or the white space before it.
		if i < len(b) && b[i] == ' ' {
			i++
		}
		if i < len(b) && b[i] <= ' ' {
			p.i = i
			p.space()
			i = p.i
		}
		var v uint64
		start := i
		for i < len(b) {
			d := b[i] - '0'
			if d > 9 {
				break
			}
			v = v*10 + uint64(d)
			i++
		}
		n := i - start
		if uint(n-1) < 10 && (b[start] != '0' || n == 1) && v <= math.MaxUint32 && i < len(b) && (b[i] == ',' || b[i] == ']') {
			dst = append(dst, uint32(v))
		} else {
			p.i = start
			id, ok := p.oddToken(depth + 1)
			if !ok {
				return false
			}
			dst = append(dst, id)
			c := p.space()
			if c != ',' && c != ']' {
				return p.failHere("expected a comma or the end of the list or object")
			}
			i = p.i
		}
		if b[i] == ']' {
			p.i = i + 1
			p.r.tokens = dst
			return true
		}
	}
}

// oddToken reads an element of a list of ids that is not simply digits: white space around it, a fraction of 0, an
// exponent, or no id at all, which is noted.
func (p *parser) oddToken(depth int) (uint32, bool) {
	c := p.space()
	if c != '-' && c-'0' > 9 {
		p.promptBad = wrongPrompt
		return 0, p.skip(depth)
	}
	n, ok := p.number()
	if !ok {
		return 0, false
	}
	x, err := strconv.ParseFloat(view(n.of(p.b)), 64)
	if err != nil || x != math.Trunc(x) || x < 0 || x > math.MaxUint32 {
		p.promptBad = wrongToken
		return 0, true
	}
	return uint32(x), true
}

// fillPrompts turns r.parts into r.Prompts.
func (r *Request) fillPrompts() {
	r.Prompts = slices.Grow(r.Prompts, len(r.parts))
	for _, at := range r.parts {
		if at.isTokens {
			r.Prompts = append(r.Prompts, Prompt{Tokens: r.tokens[at.beg:at.end:at.end], IsTokens: true})
			continue
		}
		text := at.of(r.body)
		if at.escaped {
			text = at.of(r.text)
		}
		r.Prompts = append(r.Prompts, Prompt{Text: view(text)})
	}
}
