package openai

import "bytes"

const (
	saltField     = "cache_salt"     // holds the salt of a prompt's blocks
	streamOptions = "stream_options" // controls what a stream contains besides its text
)

// TakesSalt reports whether vLLM takes a cache salt on the route, in all releases that are supported. On Messages and
// Embeddings some releases ignore it.
func (r Route) TakesSalt() bool { return r.in(Completions, ChatCompletions, Responses) }

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

// ReplaceModel appends body to dst with name in place of the model that Parse has found in it; everything else is kept
// byte for byte. r must hold what was parsed from body. Bytes of name that are not UTF-8 become U+FFFD.
func ReplaceModel(dst, body []byte, r *Request, name string) []byte {
	dst = append(dst, body[:r.ModelAt]...)
	dst = appendJSONString(dst, name)
	return append(dst, body[r.ModelEnd:]...)
}
