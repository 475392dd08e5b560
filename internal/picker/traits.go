package picker

import (
	"strings"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// Traits are what sets a request apart from others of its kind: it can be served with other tokens, or find other blocks,
// although nothing is wrong with those. Requests of each set of traits are judged by themselves, so that none of them can end
// the trust in others: requests with unknown fields of one client say nothing about the requests for an adapter, and neither
// do those about plain ones.
type Traits uint8

// The traits.
const (
	// TraitAdapter: the request is for an adapter.
	TraitAdapter Traits = 1 << iota
	// TraitSalt: the client has set cache_salt.
	TraitSalt
	// TraitFields: the request has other fields that can concern the cache, or that are not known.
	TraitFields

	numTraits int = 1 << iota
)

var traitNames = [...]string{"adapter", "cache-salt", "fields"}

// String is for logs: plain, or the traits.
func (t Traits) String() string {
	if t == 0 {
		return "plain"
	}
	var names []string
	for i, name := range traitNames {
		if t&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// traits of a request. The salt that a tenant's requests get here is none of the client's, and all its requests have it.
func (v *view) traits(r *openai.Request) (t Traits) {
	if v.identity(r.Model) != v.spec.Model {
		t |= TraitAdapter
	}
	if r.SetsSalt {
		t |= TraitSalt
	}
	if r.OtherFields {
		t |= TraitFields
	}
	return t
}
