package openai

import "bytes"

// message is what is known of the message being read.
type message struct {
	role       role
	kinds      Kinds // by its fields
	text       textSpans
	multimodal bool
	items      int // in Request.Items before the message
}

type role uint8

const (
	otherRole role = iota
	systemRole
	developerRole
	userRole
	toolRole
)

// input reads the input of a Responses request, which begins with c: one user's text, or a list of items that are
// read as messages.
func (p *parser) input(c byte) bool {
	if c != '"' {
		ok := p.messages(c)
		if p.messagesBad == notList {
			p.messagesBad = "must be a string or a list"
		}
		return ok
	}
	p.noMessages(c)
	at := p.i
	s, ok := p.str()
	p.r.Messages, p.r.NumMessages = p.b[at:p.i], 1
	p.r.firstUser.add(s)
	return ok
}

const notList = "must be a list"

// noMessages forgets the messages of an earlier value.
func (p *parser) noMessages(c byte) {
	r := p.r
	r.Messages, r.NumMessages, r.Multimodal, r.Items, r.texts = nil, 0, false, r.Items[:0], r.texts[:0]
	r.system.n, r.firstUser.n, r.seen = 0, 0, 0
	p.messagesSeen, p.messagesBad = c != 'n', ""
}

// messages reads a list of messages, which begins with c.
func (p *parser) messages(c byte) bool {
	r := p.r
	p.noMessages(c)
	if c != '[' {
		if c != 'n' {
			p.messagesBad = notList
		}
		return p.skip(1)
	}
	at := p.i
	var m message
	haveUser := false
	ok := p.array(1, func(c byte) bool {
		r.NumMessages++
		if c != '{' {
			if c != '[' || r.Route != Embeddings { // which takes lists of chats
				p.messagesBad = "every message must be an object"
			}
			return p.skip(2)
		}
		m = message{items: len(r.Items)}
		if !p.message(&m) {
			return false
		}
		r.Multimodal = r.Multimodal || m.multimodal
		r.seen |= m.kinds
		switch m.role {
		case developerRole:
			r.seen |= KindsOf(KindDeveloper)
		case toolRole:
			r.seen |= KindsOf(KindTools)
		}
		switch {
		case (m.role == systemRole || m.role == developerRole) && !haveUser:
			for _, s := range m.text.at[:m.text.n] {
				r.system.add(s)
			}
		case m.role == userRole && !haveUser:
			haveUser = true
			r.firstUser = m.text
		}
		return true
	})
	r.Messages = p.b[at:p.i]
	return ok
}

func (p *parser) message(m *message) bool {
	return p.object(2, func(key span) bool {
		c := p.space()
		name := nameOf(p.b, key, &p.name)
		switch string(name) {
		case "role":
			m.role = otherRole
			if c != '"' {
				break
			}
			s, ok := p.str()
			switch string(nameOf(p.b, s, &p.name)) {
			case "system":
				m.role = systemRole
			case "developer":
				m.role = developerRole
			case "user":
				m.role = userRole
			case "tool", "function":
				m.role = toolRole
			}
			return ok
		case "content":
			return p.content(c, 3, m)
		case "output": // what a tool has answered
			if p.r.Route == Responses {
				return p.content(c, 3, m)
			}
		default:
			if c != 'n' {
				m.kinds |= kindOfField(name)
			}
		}
		return p.skip(3)
	})
}

// content reads the content of a message, which begins with c: a text, or a list of parts.
func (p *parser) content(c byte, depth int, m *message) bool {
	m.text.n, m.multimodal = 0, false
	p.r.Items = p.r.Items[:m.items]
	switch c {
	case '"':
		s, ok := p.messageText()
		m.text.add(s)
		return ok
	case '[':
		m.kinds |= KindsOf(KindParts)
		return p.array(depth, func(c byte) bool { return p.contentPart(c, depth+1, m) })
	}
	return p.skip(depth)
}

// messageText reads a text of a message, and remembers those of chats. The span is as it is written.
func (p *parser) messageText() (span, bool) {
	r, at := p.r, p.i
	if r.Route != ChatCompletions || len(r.texts) == maxTexts {
		return p.str()
	}
	s, ok := p.text(&r.text)
	if !ok {
		return s, false
	}
	long := p.i-at >= minText
	if long && (!s.escaped || !bytes.Contains(s.of(r.text), replacement)) { // which might be half a surrogate pair
		r.texts = append(r.texts, textAt{at: at, end: p.i, span: s})
	}
	return span{beg: at + 1, end: p.i - 1, escaped: s.escaped}, true
}

// replacement is U+FFFD.
var replacement = []byte("\ufffd")

// systemPrompt reads the system prompt of a Messages request, which begins with c.
func (p *parser) systemPrompt(c byte) bool {
	r := p.r
	r.System, r.top.n = nil, 0
	at := p.i
	m := message{items: len(r.Items)}
	if ok := p.content(c, 1, &m); !ok {
		return false
	}
	if c == '"' || c == '[' {
		r.System, r.top = p.b[at:p.i], m.text
	}
	r.Items = r.Items[:m.items] // engines take only its text
	return true
}
