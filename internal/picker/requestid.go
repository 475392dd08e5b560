package picker

import "math/rand/v2"

// RequestIDHeader carries the id of a request, by which its log lines, decision, record and spans are found.
const RequestIDHeader = "x-request-id"

// MaxRequestID bounds a client's id of a request, in bytes: engines repeat it in each event of a streamed answer.
const MaxRequestID = 128

// RequestID is the id of a request: the given one if it is a correlation id, otherwise a new one. A correlation id has at most
// MaxRequestID of the characters A-Z, a-z, 0-9, '.', '_', ':' and '-', so that it can stand in logs. Others are replaced
// because they can carry text of a prompt.
func RequestID(given string) string {
	if given == "" || len(given) > MaxRequestID {
		return NewRequestID()
	}
	for i := range len(given) {
		switch c := given[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == ':', c == '-':
		default:
			return NewRequestID()
		}
	}
	return given
}

// NewRequestID draws an id of 32 hexadecimal digits.
func NewRequestID() string {
	const digits = "0123456789abcdef"
	var id [32]byte
	for i := 0; i < len(id); i += 16 {
		for j, v := 0, rand.Uint64(); j < 16; j, v = j+1, v>>4 {
			id[i+j] = digits[v&15]
		}
	}
	return string(id[:])
}
