package openai

import "bytes"

// AnswerError is the content of an error in an answer.
type AnswerError struct {
	// Status is the HTTP status that it carries; 0 where it carries none.
	Status int
	// Full reports which limit of the engine's queue the request was refused by.
	Full QueueLimit
}

// QueueLimit is a limit of an engine's queue, by which it refuses requests.
type QueueLimit uint8

// The limits.
const (
	// NoLimit: the request was not refused by a limit.
	NoLimit QueueLimit = iota
	// RequestLimit bounds the requests in the engine (--max-num-queued-reqs of vLLM 0.29 and newer).
	RequestLimit
	// TokenLimit bounds the prompt tokens that wait to be prefilled (--max-num-queued-tokens).
	TokenLimit
)

// The error of vLLM 0.29 to 0.32 when it refuses by a limit: the type of the error, a part of the message of one limit, and
// what is left of the status where the Messages route wraps an error that it cannot translate.
const (
	fullType     = "Service Unavailable"
	backlogWords = "prefill token backlog"
	wrappedFull  = "'code': 503"
)

// anthropicStatus is the status of each kind of error of the Anthropic API, as far as it is not 500.
var anthropicStatus = [...]struct {
	kind   string
	status int
}{
	{"invalid_request_error", 400}, {"authentication_error", 401}, {"permission_error", 403}, {"not_found_error", 404},
	{"request_too_large", 413}, {"rate_limit_error", 429}, {"overloaded_error", 529}, {"timeout_error", 504},
	{"api_error", 500}, {"internal_error", 500},
}

// read reads an error object, depth levels inside others.
func (e *AnswerError) read(s *scanner, depth int) bool {
	*e = AnswerError{}
	var code, byKind int
	var busy, backlog, wrapped bool
	ok := s.object(depth, func(key span) bool {
		c := s.space()
		at := s.i
		var buf, value [maxName]byte
		switch string(nameOf(s.b, key, &buf)) {
		case "code":
			n, isNumber, ok := s.count(depth + 1)
			if code = 0; isNumber {
				code = n
			}
			return ok
		case "type":
			busy, byKind = false, 0
			if c != '"' {
				break
			}
			v, ok := s.str()
			kind := nameOf(s.b, v, &value)
			busy = string(kind) == fullType
			for i := range anthropicStatus {
				if string(kind) == anthropicStatus[i].kind {
					byKind = anthropicStatus[i].status
				}
			}
			return ok
		case "message":
			ok := s.skip(depth + 1)
			text := s.b[at:s.i]
			backlog, wrapped = bytes.Contains(text, []byte(backlogWords)), bytes.Contains(text, []byte(wrappedFull))
			return ok
		}
		return s.skip(depth + 1)
	})
	switch {
	case busy && (code == 0 || code == 503), byKind == 500 && wrapped:
		e.Status, e.Full = 503, RequestLimit
		if backlog {
			e.Full = TokenLimit
		}
	case code != 0:
		e.Status = code
	default:
		e.Status = byKind
	}
	return ok
}
