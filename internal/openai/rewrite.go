package openai

import "bytes"

const (
	saltField     = "cache_salt"     // holds the salt of a prompt's blocks
	streamOptions = "stream_options" // controls what a stream contains besides its text
)

// SaltSince reports whether vLLM takes a cache salt on the route, and since which release 0.minor; 0 for all that are supported.
// Older releases ignore the field, as all up to 0.31 do on Embeddings for inputs that they split.
func (r Route) SaltSince() (minor int, ok bool) {
	switch r {
	case Completions, ChatCompletions, Responses:
		return 0, true
	case Messages:
		return 27, true
	}
	return 0, false
}

// Generate is the path on which vLLM takes and returns token ids. It takes a cache salt in all releases that have it, which are
// those since 0.11.1.
const Generate = "/inference/v1/generate"

// Invocations is the path by which SageMaker asks engines. vLLM ignores the model in the body there: it takes it from a header.
const Invocations = "/invocations"

// SaltOf returns the cache salt of a body that Parse does not know: of its last top-level member of that name, empty if there is
// none or it is null. It fails with a *SyntaxError if the body is not a JSON object, and with a *FieldError if engines refuse the
// salt.
func SaltOf(body []byte) (salt string, err error) {
	s := scanner{b: body}
	if bytes.HasPrefix(body, byteOrderMark) {
		s.i = len(byteOrderMark)
	}
	if s.space() != '{' {
		return "", &SyntaxError{Msg: "not an object"}
	}
	found := byte('n')
	ok := s.object(0, func(key span) bool {
		var buf [maxName]byte
		c := s.space()
		if string(nameOf(s.b, key, &buf)) != saltField {
			return s.skip(1)
		}
		if found = c; c != '"' {
			salt = ""
			return s.skip(1)
		}
		value, ok := s.str()
		salt = string(appendString(nil, value.of(s.b), -1))
		return ok
	})
	if s.space(); ok && s.i < len(s.b) {
		ok = s.fail(s.i, "unexpected bytes after the end")
	}
	switch {
	case !ok:
		return "", s.err
	case found != 'n' && salt == "":
		return "", ErrSalt
	}
	return salt, nil
}

// ErrSalt is the error for a cache salt that engines refuse.
var ErrSalt error = &FieldError{Field: saltField, Msg: "must be a string that is not empty"}

// Computes reports whether an engine can look up a prompt in its prefix cache for a request with a body. An empty method or
// path is one that is not known.
func Computes(method, path string) bool {
	if method != "" && method != "POST" {
		return false
	}
	switch path {
	case CountTokens, "/tokenize", "/detokenize":
		return false
	}
	return true
}

// PutSalt prepares body, a JSON object that Parse has read, for another cache salt in place of those that it has, if any. It
// blanks these, as DropPriority does. The new body is body[:keep] and tail behind it; the rest is kept byte for byte.
func PutSalt(body []byte, salt string) (keep int, tail []byte) {
	return putMember(body, saltField, func(tail []byte) []byte { return appendJSONString(tail, salt) })
}

// PutStreamUsage prepares body, which Parse has read with TakesUsage, to make the engine report the usage at the end of the
// stream, as PutSalt does for the salt. AnswerScanner.WriteCut takes the report out of the answer.
func PutStreamUsage(body []byte) (keep int, tail []byte) {
	return putMember(body, streamOptions, func(tail []byte) []byte { return append(tail, `{"include_usage":true}`...) })
}

// engineArguments is the field whose object vLLM takes over into the parameters of the engine.
const engineArguments = "vllm_xargs"

// ReportSince is the first minor release of vLLM that reads what PutReport asks for.
const ReportSince = 26

// PutReport prepares body, which Parse has read with TakesReport, to make the engine announce again the blocks that it finds of
// the prompt in its cache, as PutSalt does for the salt. The answer is the same.
func PutReport(body []byte) (keep int, tail []byte) {
	return putMember(body, engineArguments, func(tail []byte) []byte { return append(tail, `{"kv_cache_report_mode":"full"}`...) })
}

// putMember sets a top-level member of a JSON object in place of all members of that name.
func putMember(body []byte, field string, appendValue func([]byte) []byte) (keep int, tail []byte) {
	const space = " \t\r\n"
	dropMembers(body, func(name []byte) bool { return string(name) == field })
	end := len(bytes.TrimRight(body, space)) - 1 // its closing brace
	keep = len(bytes.TrimRight(body[:end], space))
	if body[keep-1] != '{' {
		tail = append(tail, ',')
	}
	tail = append(tail, `"`+field+`":`...)
	return keep, append(appendValue(tail), '}')
}

// ModelName is a name as ReplaceModel writes it: a JSON string.
func ModelName(name string) []byte { return appendJSONString(nil, name) }

// ReplaceModel appends body to dst with name in place of the model that Parse has found in it; everything else is kept
// byte for byte. r must hold what was parsed from body. Bytes of name that are not UTF-8 become U+FFFD.
func ReplaceModel(dst, body []byte, r *Request, name string) []byte {
	dst = append(dst, body[:r.ModelAt]...)
	dst = appendJSONString(dst, name)
	return append(dst, body[r.ModelEnd:]...)
}
