package render

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// answerScan reads an answer: an object, or a list of objects with ids each. It reads only the fields that matter; in the
// rest it follows strings and nesting and does not check their content.
type answerScan struct {
	objects    int        // how many objects there are
	ids        []uint32   // of the first object
	more       [][]uint32 // of the other objects
	found      bool       // every object has ids
	multimodal bool       // some object has multimodal items
	hashes     []byte     // of the last object: what it says of its items, as JSON, within data
	places     []byte
	plain      bool // every object says that its type is "token"

	data []byte
	at   int
}

var errJSON = errors.New("not the JSON expected")

// maxDepth of nesting, far more than any answer has.
const maxDepth = 64

// scan reads an answer whose ids are under key.
func (s *answerScan) scan(answer []byte, key string) error {
	s.data, s.at = answer, 0
	switch s.next() {
	case '{':
		s.objects = 1
		if !s.object(key) {
			return fmt.Errorf("%w at byte %d", errJSON, s.at)
		}
	case '[':
		if !s.list(key) {
			return fmt.Errorf("%w at byte %d", errJSON, s.at)
		}
	default:
		return fmt.Errorf("%w at byte %d", errJSON, s.at)
	}
	if s.next() != 0 {
		return fmt.Errorf("%w at byte %d", errJSON, s.at)
	}
	if s.objects > 0 && !s.found {
		return fmt.Errorf("%w: no %s", errJSON, key)
	}
	return nil
}

// earlyAnswer reads what vLLM 0.17 and its neighbours answer: a list with the prompts as the engine core is given them
// and, for chats, a list of the messages in front of it. Prompts of another type than plain tokens are left to releases
// that say more about them.
func earlyAnswer(answer []byte, route openai.Route) (out Answer, ok bool) {
	s := answerScan{data: answer}
	if s.next() != '[' {
		return out, false
	}
	switch route {
	case openai.ChatCompletions:
		n := 0
		ok = s.each(']', func() bool {
			if n++; n == 1 {
				return s.skip(1)
			}
			return n == 2 && s.next() == '[' && s.list(earlyIDs)
		}) && s.objects == 1
	case openai.Completions:
		ok = s.list(earlyIDs) && s.objects > 0
	}
	if !ok || !s.found || !s.plain || s.next() != 0 {
		return out, false
	}
	return Answer{IDs: s.ids, More: s.more, Source: Rendered}, true
}

// earlyIDs is the key of the ids in early answers.
const earlyIDs = "prompt_token_ids"

// next skips white space and returns the byte there, 0 at the end.
func (s *answerScan) next() byte {
	for s.at < len(s.data) {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

// each walks the items between two brackets, calling item at each one.
func (s *answerScan) each(closing byte, item func() bool) bool {
	s.at++ // the opening bracket
	if s.next() == closing {
		s.at++
		return true
	}
	for {
		if s.next() == 0 || !item() {
			return false
		}
		switch s.next() {
		case ',':
			s.at++
		case closing:
			s.at++
			return true
		default:
			return false
		}
	}
}

// list reads a list of objects, and keeps the ids of the first.
func (s *answerScan) list(key string) bool {
	var first []uint32
	multimodal, plain := false, true
	ok := s.each(']', func() bool {
		if s.next() != '{' {
			return false
		}
		s.objects++
		s.found, s.multimodal, s.plain, s.ids = false, false, false, nil
		if !s.object(key) || !s.found { // a list of empty objects would take many times its bytes
			return false
		}
		multimodal, plain = multimodal || s.multimodal, plain && s.plain
		if s.objects == 1 {
			first = s.ids
		} else {
			s.more = append(s.more, s.ids)
		}
		return true
	})
	s.ids, s.multimodal, s.plain = first, multimodal, plain
	return ok
}

// object reads an object.
func (s *answerScan) object(key string) bool {
	return s.each('}', func() bool {
		name, ok := s.name()
		if !ok {
			return false
		}
		switch string(name) {
		case key:
			s.found = true
			return s.tokens()
		case "features":
			return s.features()
		case "type":
			s.next()
			start := s.at
			ok := s.skip(1)
			s.plain = string(s.data[start:s.at]) == `"token"`
			return ok
		}
		return s.skip(0)
	})
}

// name reads a key and the colon after it.
func (s *answerScan) name() ([]byte, bool) {
	if s.next() != '"' {
		return nil, false
	}
	start := s.at
	if !s.text() {
		return nil, false
	}
	name := s.data[start+1 : s.at-1]
	if s.next() != ':' {
		return nil, false
	}
	s.at++
	return name, true
}

// text skips a string.
func (s *answerScan) text() bool {
	for at := s.at + 1; ; {
		i := bytes.IndexByte(s.data[at:], '"')
		if i < 0 {
			return false
		}
		at += i
		escapes := 0
		for s.data[at-1-escapes] == '\\' {
			escapes++
		}
		at++
		if escapes%2 == 0 {
			s.at = at
			return true
		}
	}
}

// skip skips a value.
func (s *answerScan) skip(depth int) bool {
	if depth > maxDepth {
		return false
	}
	switch s.next() {
	case '"':
		return s.text()
	case '[':
		return s.each(']', func() bool { return s.skip(depth + 1) })
	case '{':
		return s.each('}', func() bool {
			_, ok := s.name()
			return ok && s.skip(depth+1)
		})
	}
	start := s.at
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ',', ']', '}', ' ', '\t', '\n', '\r', '"', ':', '[', '{':
			return s.at > start
		}
		s.at++
	}
	return s.at > start
}

// tokens reads a list of ids: integers below 2^32.
func (s *answerScan) tokens() bool {
	if s.next() != '[' {
		return false
	}
	end := bytes.IndexByte(s.data[s.at:], ']')
	if end < 0 {
		return false
	}
	// Each id is at least two bytes with its comma, so that memory stays below twice the answer.
	s.ids = make([]uint32, 0, bytes.Count(s.data[s.at:s.at+end], []byte{','})+1)
	data, ids := s.data, s.ids
	s.at++
	if s.next() == ']' {
		s.at++
		return true
	}
	for {
		s.next()
		id, at := uint64(0), s.at
		for ; at < len(data) && data[at]-'0' <= 9; at++ {
			if id = 10*id + uint64(data[at]-'0'); id > math.MaxUint32 {
				return false
			}
		}
		if at == s.at {
			return false
		}
		s.at = at
		ids = append(ids, uint32(id))
		switch s.next() {
		case ',':
			s.at++
		case ']':
			s.at++
			s.ids = ids
			return true
		default:
			return false
		}
	}
}

// features reads what the engine found beside text: per kind of item a list of hashes and of places.
func (s *answerScan) features() bool {
	s.multimodal, s.hashes, s.places = false, nil, nil
	if s.next() != '{' {
		return s.skip(0) // null
	}
	return s.each('}', func() bool {
		name, ok := s.name()
		if !ok {
			return false
		}
		if string(name) != "mm_hashes" && string(name) != "mm_placeholders" || s.next() != '{' {
			return s.skip(1)
		}
		begin, of := s.at, &s.places
		if string(name) == "mm_hashes" {
			of = &s.hashes
		}
		defer func() { *of = s.data[begin:s.at] }()
		return s.each('}', func() bool {
			if _, ok := s.name(); !ok {
				return false
			}
			if s.next() != '[' {
				return s.skip(2)
			}
			start := s.at
			if !s.skip(2) {
				return false
			}
			inside := bytes.TrimSpace(s.data[start+1 : s.at-1])
			s.multimodal = s.multimodal || len(inside) > 0
			return true
		})
	})
}
