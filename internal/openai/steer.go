package openai

import "bytes"

// Steering is a set of what fields of a request control in the engine besides the answer.
type Steering uint8

const (
	// SteersPriority marks the request's place in the engine's scheduler (priority).
	SteersPriority Steering = 1 << iota
	// SteersTransfer marks blocks from or for other engines, or the engine's rank. The fields are kv_transfer_params and
	// ec_transfer_params of vLLM, and those that name SGLang's partner in disaggregated serving and its rank.
	SteersTransfer
	// SteersEvents marks the contents of the engine's KV events: vLLM's kv_cache_report_mode, and texts of more than MaxEventText
	// bytes that an engine repeats in the events of the request's blocks (cache_salt, session_id, and the uuid of an image).
	SteersEvents
)

// MaxEventText bounds the texts of a request that engines repeat in their events, in bytes of JSON with its quotes. A session_id of some
// megabytes would be in each event of an answer (vLLM 0.32): such events neither pass the limits of pickers nor fit into the engine's
// replay buffer. vLLM 0.32 itself bounds only cache_salt, to 128 characters.
const MaxEventText = 1 << 10

// repeats is what a value of so many bytes of the field name controls by its length.
func repeats(name []byte, bytes int) Steering {
	if bytes <= MaxEventText {
		return 0
	}
	switch string(name) {
	case saltField, "session_id", "uuid":
		return SteersEvents
	}
	return 0
}

// steeringOf is what a field controls, by its name.
func steeringOf(name []byte) Steering {
	switch string(name) {
	case "priority":
		return SteersPriority
	case "kv_transfer_params", "ec_transfer_params",
		"bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key",
		"data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "decode_tp_size":
		return SteersTransfer
	case "kv_cache_report_mode":
		return SteersEvents
	}
	return 0
}

// holdsArguments reports whether an engine reads steering fields within the field name as well: vLLM copies vllm_xargs to
// sampling_params.extra_args, where its connectors look for kv_transfer_params.
func holdsArguments(name []byte) bool {
	switch string(name) {
	case "vllm_xargs", "sampling_params", "extra_args":
		return true
	}
	return false
}

// arguments reads the object at i, a field that holdsArguments, and adds what is steered by its members to found. Priority
// has no meaning there.
func (s *scanner) arguments(depth int, found *Steering) bool {
	return s.object(depth, func(key span) bool {
		var buf [maxName]byte
		c := s.space()
		name := nameOf(s.b, key, &buf)
		if c != 'n' {
			*found |= steeringOf(name) &^ SteersPriority
		}
		if c == '{' && holdsArguments(name) {
			return s.arguments(depth+1, found)
		}
		at := s.i
		ok := s.skip(depth + 1)
		*found |= repeats(name, s.i-at)
		return ok
	})
}

// items reads a value of any kind, and adds what is steered by the names of images and the like in it to found. named: each text is
// such a name.
func (s *scanner) items(depth int, named bool, found *Steering) bool {
	switch s.space() {
	case '{':
		return s.object(depth, func(key span) bool {
			var buf [maxName]byte
			name := nameOf(s.b, key, &buf)
			return s.items(depth+1, named || string(name) == "uuid" || string(name) == "mm_hashes", found)
		})
	case '[':
		return s.array(depth, func(byte) bool { return s.items(depth+1, named, found) })
	}
	at := s.i
	ok := s.skip(depth)
	if named && s.i-at > MaxEventText {
		*found |= SteersEvents
	}
	return ok
}

// holdsItems reports whether a field of a request that is not parsed can have images or the like.
func holdsItems(name []byte) bool {
	switch string(name) {
	case "messages", "input", "features", "content_parts":
		return true
	}
	return false
}

// SteeringOf is what a body that Parse does not know controls, by the same fields as Request.Steering. It fails with a
// *SyntaxError if an engine might read the body as a JSON object, but it is none by RFC 8259 in UTF-8: Python's parser also
// takes NaN, UTF-16 and UTF-32. A body that is no JSON object steers nothing.
func SteeringOf(body []byte) (found Steering, err error) {
	s := scanner{b: body}
	if bytes.HasPrefix(body, byteOrderMark) {
		s.i = len(byteOrderMark)
	}
	if wide(body) {
		return 0, &SyntaxError{Msg: "not UTF-8"}
	}
	if s.space() != '{' {
		return 0, nil
	}
	ok := s.object(0, func(key span) bool {
		var buf [maxName]byte
		c := s.space()
		name := nameOf(s.b, key, &buf)
		if c != 'n' {
			found |= steeringOf(name)
		}
		switch {
		case c == '{' && holdsArguments(name):
			return s.arguments(1, &found)
		case holdsItems(name):
			return s.items(1, false, &found)
		}
		at := s.i
		ok := s.skip(1)
		found |= repeats(name, s.i-at)
		return ok
	})
	if s.space(); ok && s.i < len(s.b) {
		ok = s.fail(s.i, "unexpected bytes after the end")
	}
	if !ok {
		return 0, s.err
	}
	return found, nil
}

// wide reports whether body begins as JSON in UTF-16 or UTF-32 does, with or without a byte order mark (RFC 4627, 3).
func wide(body []byte) bool {
	return bytes.HasPrefix(body, []byte("\xff\xfe")) || bytes.HasPrefix(body, []byte("\xfe\xff")) ||
		bytes.IndexByte(body[:min(len(body), 4)], 0) >= 0
}

// DropPriority blanks every top-level member priority of a JSON object with spaces, and one comma with each, so that body
// keeps its length and the place of everything else. It reports whether there was one. The body must be one that Parse or
// SteeringOf has read without an error; of another it can blank some.
func DropPriority(body []byte) (dropped bool) {
	return dropMembers(body, func(name []byte) bool { return steeringOf(name) == SteersPriority })
}

// dropMembers blanks the top-level members whose names drop reports, as DropPriority does.
func dropMembers(body []byte, drops func(name []byte) bool) (dropped bool) {
	s := scanner{b: body}
	if bytes.HasPrefix(body, byteOrderMark) {
		s.i = len(byteOrderMark)
	}
	if s.space() != '{' {
		return false
	}
	s.i++
	for comma := -1; s.space() == '"'; s.i++ { // comma: behind the last member that stays
		at := s.i
		key, ok := s.keySpan()
		if !ok {
			break
		}
		var buf [maxName]byte
		drop := drops(nameOf(body, key, &buf))
		if s.space(); !s.skip(1) {
			break
		}
		end := s.i
		next := s.space()
		switch {
		case drop && next == ',':
			blank(body[at : s.i+1])
		case drop:
			blank(body[at:end])
			if comma >= 0 {
				blank(body[comma : comma+1])
			}
		case next == ',':
			comma = s.i
		}
		dropped = dropped || drop
		if next != ',' {
			break
		}
	}
	return dropped
}

func blank(text []byte) {
	for i := range text {
		text[i] = ' '
	}
}
