package openai

import "bytes"

// saltField is the member that holds the salt of a prompt's blocks.
const saltField = "cache_salt"

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
	const space = " \t\r\n"
	dropMembers(body, func(name []byte) bool { return string(name) == saltField })
	end := len(bytes.TrimRight(body, space)) - 1 // its closing brace
	keep = len(bytes.TrimRight(body[:end], space))
	if body[keep-1] != '{' {
		tail = append(tail, ',')
	}
	tail = append(tail, `"`+saltField+`":`...)
	tail = appendJSONString(tail, salt)
	return keep, append(tail, '}')
}

// ReplaceModel appends body to dst with name in place of the model that Parse has found in it; everything else is kept
// byte for byte. r must hold what was parsed from body. Bytes of name that are not UTF-8 become U+FFFD.
func ReplaceModel(dst, body []byte, r *Request, name string) []byte {
	dst = append(dst, body[:r.ModelAt]...)
	dst = appendJSONString(dst, name)
	return append(dst, body[r.ModelEnd:]...)
}
