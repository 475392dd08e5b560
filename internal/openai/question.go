package openai

import (
	"hash"
	"slices"
	"strings"
)

// maxQuestionParts is the most parts that a question can have.
const maxQuestionParts = 16

// Question is the text of the last message of a request, which a user has written.
type Question struct {
	// Text is decoded; the texts of several parts are in lines of their own.
	Text string
	// strings are where it stands in the body, in their order, without their quotes.
	strings []span
}

// Question returns the question of a chat, a request of Messages, or one of Responses: the text of its last message, if that is a user's
// and has nothing but text, of at most so many bytes in the body and not blank. ok is false for other requests, and where parsers could
// read another text: if a name in the message is written twice or with an escape.
func (r *Request) Question(most int) (q Question, ok bool) {
	name := "messages"
	if r.Route == Responses {
		name = "input"
	}
	f := r.field(name)
	if f == nil || !r.Route.in(ChatCompletions, Messages, Responses) {
		return q, false
	}
	reader := questionReader{scanner: scanner{b: r.body, i: f.at}}
	switch c := reader.space(); {
	case c == '"' && r.Route == Responses:
		ok = reader.text()
	case c == '[':
		last := -1
		ok = reader.array(1, func(byte) bool {
			last = reader.i
			return reader.skip(2)
		})
		if reader.i = last; ok && last >= 0 && r.body[last] == '{' {
			ok = reader.message()
		} else {
			ok = false
		}
	}
	size := 0
	for _, s := range reader.found {
		size += s.end - s.beg
	}
	if !ok || size > most {
		return q, false
	}
	var text []byte
	for i, s := range reader.found {
		if i > 0 {
			text = append(text, '\n')
		}
		text = appendString(text, s.of(r.body), -1)
	}
	q = Question{Text: string(text), strings: reader.found}
	return q, strings.TrimSpace(q.Text) != ""
}

// WriteCanonicalWithout is WriteCanonical for requests that are compared without their questions: in place of each text of the question
// stands an empty one.
func (r *Request) WriteCanonicalWithout(w hash.Hash, q *Question) (ok bool) {
	return r.writeCanonical(w, ignored[r.Route], q.strings)
}

// questionReader finds the strings of a question.
type questionReader struct {
	scanner
	found []span
}

// text reads a string of the question.
func (q *questionReader) text() bool {
	s, ok := q.str()
	q.found = append(q.found, s)
	return ok && len(q.found) <= maxQuestionParts
}

// once reads an object whose names are all different and without escapes.
func (q *questionReader) once(depth int, each func(name string, c byte) bool) bool {
	var names []string
	return q.object(depth, func(key span) bool {
		name := string(key.of(q.b))
		if key.escaped || slices.Contains(names, name) || len(names) == 64 {
			return false
		}
		names = append(names, name)
		return each(name, q.space())
	})
}

// is reads a string, and reports whether it is one of some texts, as it is written.
func (q *questionReader) is(c byte, texts ...string) bool {
	if c != '"' {
		return false
	}
	s, ok := q.str()
	return ok && slices.Contains(texts, string(s.of(q.b)))
}

// message reads the last message. It fails if that is not a user's, or has something else than text.
func (q *questionReader) message() bool {
	user := false
	ok := q.once(2, func(name string, c byte) bool {
		switch name {
		case "role":
			user = q.is(c, "user")
			return user
		case "type":
			return q.is(c, "message")
		case "content":
			if c == '"' {
				return q.text()
			}
			return c == '[' && q.array(3, func(c byte) bool { return c == '{' && q.part() })
		}
		return q.skip(3)
	})
	return ok && user && len(q.found) > 0
}

// part reads a part of the content.
func (q *questionReader) part() bool {
	typed, before := false, len(q.found)
	ok := q.once(4, func(name string, c byte) bool {
		switch name {
		case "type":
			typed = q.is(c, "text", "input_text")
			return typed
		case "text":
			return c == '"' && q.text()
		}
		return q.skip(5)
	})
	return ok && typed && len(q.found) == before+1
}
