// Package modelroute decides to which pool a request for a model goes: by the rules of a ModelRoute, the weights of a rule's
// backends, and its fallbacks.
//
// The choice is a function of the route and of one number, the draw. The draw of a request with a session is a hash of the session,
// so that all replicas send a session to the same backend without exchanging anything. A changed weight moves only as
// many sessions as it has to: backends are chosen by weighted rendezvous hashing (Schindelhauer and Schomaker, 2005).
package modelroute

import (
	"math"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Route says where requests for some models go.
type Route struct {
	Namespace, Name string
	// Models are the names that clients use.
	Models []string
	// Rules are tried in order; the first that matches is used.
	Rules []Rule
	// Timeout of a request, from its arrival to the end of its answer; 0 for none.
	Timeout time.Duration
	// Limits of all requests by the route.
	Limits Limits
}

// Limits bound requests; 0 for no limit.
type Limits struct{ RequestsPerMinute, MaxConcurrent int }

// Rule says where the requests go that it matches.
type Rule struct {
	// Matches are alternatives; without any, the rule matches every request.
	Matches []Match
	// Sticky keeps the requests of a session with one backend.
	Sticky bool
	// Backends share the requests by weight.
	Backends []Backend
	// Fallbacks are tried in order when a backend has failed for a cause in On.
	Fallbacks []Backend
	On        Causes
	// Within is how long after a request's arrival it can be sent to a fallback.
	Within time.Duration
	// Mirrors get copies of requests.
	Mirrors []Mirror
}

// Mirror is a pool that gets copies of Percent of the requests, or of the sessions.
type Mirror struct {
	Backend
	Percent int
}

// Match is a condition: all of its parts must hold.
type Match struct {
	// Tenant of the request; empty for any.
	Tenant string
	// Headers must have exactly these values.
	Headers []Header
}

// Header is a request header, by its lower-case name.
type Header struct{ Name, Value string }

// Backend is a pool under one of its names.
type Backend struct {
	// Pool is namespace/name.
	Pool string
	// Model is the name that the engines get; empty for the name of the pool's model.
	Model string
	// Weight in relation to those of the other backends; 0 for no requests.
	Weight int

	seed uint64
}

// Cause is why a backend does not serve a request.
type Cause uint8

// The causes.
const (
	// Full: the pool's queue has refused the request, or the engines' queues have.
	Full Cause = iota
	// Cold: the pool has no endpoint at all.
	Cold
	// Down: no endpoint of the pool can take requests, or those that were tried have failed.
	Down
	// NumCauses is the number of causes.
	NumCauses int = iota
)

// String is the value of the metric label.
func (c Cause) String() string { return [...]string{"full", "cold", "down"}[c] }

// Causes is a set of causes.
type Causes uint8

// Of is the set of some causes.
func Of(causes ...Cause) (s Causes) {
	for _, c := range causes {
		s |= 1 << c
	}
	return s
}

// Has reports whether a cause is in the set.
func (s Causes) Has(c Cause) bool { return s&(1<<c) != 0 }

// Prepared is a copy of the route whose rules are ready for Choose.
func (r *Route) Prepared() *Route {
	out := *r
	out.Rules = slices.Clone(r.Rules)
	for i := range out.Rules {
		rule := &out.Rules[i]
		rule.Backends = slices.Clone(rule.Backends)
		for j := range rule.Backends {
			b := &rule.Backends[j]
			b.seed = endpoint.Hash(r.Namespace + "/" + r.Name + "\x00" + b.Pool + "\x00" + b.Model)
		}
		rule.Mirrors = slices.Clone(rule.Mirrors)
		for j := range rule.Mirrors {
			m := &rule.Mirrors[j]
			m.seed = endpoint.Hash("mirror\x00" + r.Namespace + "/" + r.Name + "\x00" + m.Pool + "\x00" + m.Model)
		}
	}
	return &out
}

// Choose returns the index of the backend for a draw; -1 if all weights are 0. Over draws that are evenly distributed, each backend
// gets its part of the sum of the weights. The order of the backends has no effect.
func (r *Rule) Choose(draw uint64) int {
	best, most := -1, 0.0
	for i := range r.Backends {
		b := &r.Backends[i]
		if b.Weight <= 0 {
			continue
		}
		// An exponential variate whose rate is the weight is the smallest with the probability of the weight's share.
		u := unit(draw ^ b.seed)
		if score := float64(b.Weight) / -math.Log(u); best < 0 || score > most {
			best, most = i, score
		}
	}
	return best
}

// unit makes an evenly distributed number between 0 and 1 of one whose bits need not be.
func unit(x uint64) float64 { return (float64(endpoint.Mix(x)>>11) + 0.5) / (1 << 53) }

// Takes reports whether a request with a draw is copied to the mirror. It is independent of the backend and of other mirrors. A draw that
// is taken is also taken with every higher percentage.
func (m *Mirror) Takes(draw uint64) bool { return unit(draw^m.seed) < float64(m.Percent)/100 }

// Is reports whether two backends are the same pool under the same name.
func (b *Backend) Is(other *Backend) bool { return b.Pool == other.Pool && b.Model == other.Model }

// Target is the backend of a step: the chosen one at step 0, then the fallbacks.
func (r *Rule) Target(chosen, step int) *Backend {
	if step == 0 {
		return &r.Backends[chosen]
	}
	return &r.Fallbacks[step-1]
}

// Holds reports whether a request fulfils the condition. header reads a header by its lower-case name; nil has none.
func (m *Match) Holds(tenant string, header func(string) string) bool {
	if m.Tenant != "" && m.Tenant != tenant {
		return false
	}
	for _, h := range m.Headers {
		if header == nil || header(h.Name) != h.Value {
			return false
		}
	}
	return true
}
