package picker

import (
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/policy"
)

// prefixBlocks is how many leading blocks identify a prompt's prefix in tie-breaks, where the strategy does not set it:
// enough to distinguish conversations that share a system prompt.
const prefixBlocks = 64

// maxSessions is the most sessions of a pool whose last endpoint is remembered, about 7 MB.
const maxSessions = 1 << 16

// sessionKeys are the policy's. Rendezvous on sessions asks for more, in the order of "Routing on Real KV Cache Events":
// three headers, then fields of the body, then a hash of the body.
func sessionKeys(p *PolicySpec) []SessionKey {
	if c := p.Strategy; c.Type != policy.Rendezvous || c.Rendezvous.ByPrefix {
		return p.SessionKeys
	}
	keys := []SessionKey{
		{Type: "Header", Name: "x-semantic-cluster-id"}, {Type: "Header", Name: "x-session-id"}, {Type: "Header", Name: "x-user-id"},
	}
	return append(append(keys, p.SessionKeys...), SessionKey{Type: "Body"})
}

// session hashes the first session key that the request carries; 0 without one.
func session(keys []SessionKey, header func(string) string, body []byte, r *openai.Request) uint64 {
	for _, key := range keys {
		value := ""
		switch key.Type {
		case "Header":
			value = HeaderOf(header, key.Name)
		case "BodyField":
			value, _ = r.Field(key.Name)
		case "Prefix":
			if text, ok := r.AppendStable(nil); ok {
				value = string(text)
			}
		case "Body":
			if len(body) > 0 {
				return endpoint.Hash(string(body))
			}
		}
		if value != "" {
			return endpoint.Hash(value)
		}
	}
	return 0
}

// prefix names the beginning of the prompt: the key of its block number blocks, of its last whole block if it is
// shorter, or a hash of its text if it has no keys.
func prefix(keys []kvblock.Key, blocks int, r *openai.Request) uint64 {
	if n := min(len(keys), blocks); n > 0 {
		return uint64(keys[n-1])
	}
	text, _ := r.AppendStable(nil)
	return endpoint.Hash(string(text))
}
