package openai

import (
	"maps"
	"slices"
)

// Prefix is the path below which engines serve their APIs. Clients may use every path below it that is not administrative.
const Prefix = "/v1"

// Health is the path of engines' health checks. Pickers answer it themselves, without a key.
const Health = "/health"

// clientPaths are the paths outside Prefix that clients of engines use, and whether they take POST only. The proxy admits
// no others, and the operator's route sends no others to a pool, because later releases of engines can have paths outside
// Prefix that are not for clients.
var clientPaths = map[string]struct{ post bool }{
	Health: {}, "/ping": {}, "/version": {}, "/tokenizer_info": {},
	"/rerank": {true}, "/v2/rerank": {true}, "/score": {true}, "/generative_scoring": {true},
	"/pooling": {true}, "/classify": {true}, "/v2/embed": {true},
	"/tokenize": {true}, "/detokenize": {true},
	Invocations: {true}, Generate: {true}, "/cohere/v2/chat": {true}, "/cohere/v2/chat/render": {true},
}

// ClientPaths lists the paths outside Prefix that clients of engines use, in order. Below them are no others.
func ClientPaths() []string { return slices.Sorted(maps.Keys(clientPaths)) }

// UnreadPath reports whether path is one below Prefix that takes POST only, and whose bodies no Route describes.
func UnreadPath(path string) bool {
	switch path {
	case Prefix + "/audio/transcriptions", Prefix + "/audio/translations", Prefix + "/rerank", Prefix + "/score":
		return true
	}
	return false
}

// ClientPath reports whether path is one of ClientPaths, and whether it takes POST only.
func ClientPath(path string) (post, ok bool) {
	p, ok := clientPaths[path]
	return p.post, ok
}
