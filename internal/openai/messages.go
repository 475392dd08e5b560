package openai

// message is what is known of the message being read.
type message struct {
	role       role
	text       textSpans
	multimodal bool
}

type role uint8

const (
	otherRole role = iota
	systemRole
	userRole
)

// messages reads the messages of a chat request.
func (p *parser) messages(c byte) bool {
	r := p.r
	r.Messages, r.NumMessages, r.Multimodal = nil, 0, false
	r.system.n, r.firstUser.n = 0, 0
	p.messagesSeen, p.messagesBad = c != 'n', ""
	if c != '[' {
		if c != 'n' {
			p.messagesBad = "must be a list"
		}
		return p.skip(1)
	}
	at := p.i
	var m message
	haveUser := false
	ok := p.array(1, func(c byte) bool {
		r.NumMessages++
		if c != '{' {
			p.messagesBad = "every message must be an object"
			return p.skip(2)
		}
		m = message{}
		if !p.message(&m) {
			return false
		}
		r.Multimodal = r.Multimodal || m.multimodal
		switch {
		case m.role == systemRole && !haveUser:
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
		switch string(nameOf(p.b, key, &p.name)) {
		case "role":
			m.role = otherRole
			if c != '"' {
				break
			}
			s, ok := p.str()
			switch string(nameOf(p.b, s, &p.name)) {
			case "system", "developer":
				m.role = systemRole
			case "user":
				m.role = userRole
			}
			return ok
		case "content":
			m.text.n, m.multimodal = 0, false
			switch c {
			case '"':
				s, ok := p.str()
				m.text.add(s)
				return ok
			case '[':
				return p.array(3, func(c byte) bool { return p.contentPart(c, m) })
			}
		}
		return p.skip(3)
	})
}

// contentPart reads one element of a message's content, which begins with c. A part is text when its type says so, or
// when it has no type and nothing but text.
func (p *parser) contentPart(c byte, m *message) bool {
	if c == '"' {
		s, ok := p.str()
		m.text.add(s)
		return ok
	}
	if c != '{' {
		return p.skip(4)
	}
	var text span
	var haveText, typed, textual, others bool
	ok := p.object(4, func(key span) bool {
		c := p.space()
		switch string(nameOf(p.b, key, &p.name)) {
		case "type":
			typed, textual = c == '"', false
			if c != '"' {
				break
			}
			s, ok := p.str()
			switch string(nameOf(p.b, s, &p.name)) {
			case "text", "input_text", "output_text", "refusal", "thinking":
				textual = true
			}
			return ok
		case "text":
			haveText = c == '"'
			if !haveText {
				break
			}
			s, ok := p.str()
			text = s
			return ok
		default:
			others = true
		}
		return p.skip(5)
	})
	if !typed {
		textual = haveText && !others
	}
	if !textual {
		m.multimodal = true
	} else if haveText {
		m.text.add(text)
	}
	return ok
}
