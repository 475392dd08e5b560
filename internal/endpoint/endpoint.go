// Package endpoint identifies what can be picked: one data-parallel rank of one pod.
package endpoint

import "strconv"

// ID is an endpoint's identity. Addresses are reused by the cluster's network, so nothing is keyed by them.
type ID struct {
	// Pod is the pod's UID, or its namespace and name where there is no UID.
	Pod string
	// Rank is the data-parallel rank inside the pod, from 0.
	Rank int
}

// String is pod/rank.
func (id ID) String() string { return id.Pod + "/" + strconv.Itoa(id.Rank) }

// Hash is stable across processes: FNV-1a with Murmur3's finaliser. Rendezvous hashing mixes it with a request's key.
func (id ID) Hash() uint64 {
	return Mix((fnv1a(id.Pod) ^ uint64(id.Rank)) * prime)
}

// Hash is FNV-1a with Murmur3's finaliser: stable across processes, and no allocation.
func Hash(s string) uint64 { return Mix(fnv1a(s)) }

// prime of FNV-1a.
const prime = 1099511628211

func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * prime
	}
	return h
}

// Mix is Murmur3's 64-bit finaliser: every input bit reaches every output bit.
func Mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Endpoint is what is known of an endpoint from the cluster or from files. Values are immutable snapshots.
type Endpoint struct {
	ID ID
	// Pod and Namespace name the pod for people.
	Pod, Namespace string
	// Address is host:port of the engine's HTTP server.
	Address string
	// Socket is the path of a unix socket that replaces Address; standalone mode only.
	Socket string
	// EventsAddress and ReplayAddress are host:port of the engine's event publisher and its replay socket for this
	// rank; empty when there is none.
	EventsAddress, ReplayAddress string
	// EventsAssumed reports that EventsAddress is not configured: it is the default, and the engine's own report replaces
	// it. ReplayAssumed is the same for ReplayAddress.
	EventsAssumed, ReplayAssumed bool
	// DialsIn reports that the engine's publisher connects to the picker, in place of EventsAddress.
	DialsIn bool
	// EventRank is the global data-parallel rank: the engine names its publishers by it, and adds it to the ports that it
	// binds and dials.
	EventRank int
	// RankHeader is the value of X-data-parallel-rank (the global rank) for pods whose ranks share one HTTP port; -1 when
	// the header is not needed.
	RankHeader int
	// Island of the endpoint; empty when the pool has none.
	Island string
	// Revision of what the engine was made from. Engines of different ones hand nothing over. Empty if it is not known.
	Revision string
	// Role is which parts of a request the endpoint serves.
	Role Role
	// Wire is how the engine's HTTP server is spoken to.
	Wire Wire
	// Ready, Serving and Terminating mean what they mean in a Kubernetes EndpointSlice.
	Ready, Serving, Terminating bool
	// Unreachable: the picker cannot connect to the engine. Only pickers without Kubernetes set it; in a cluster, readiness
	// probes find out. Status pages show it. Such an endpoint is not Ready, unless the
	// pool has no other one.
	Unreachable bool
	// NotAnswering: the engine takes connections and answers nothing. All else is as with Unreachable.
	NotAnswering bool
}

// Wire is how the HTTP server of an engine is spoken to. The zero value is HTTP/1.1 without TLS.
type Wire struct {
	// H2C is HTTP/2 without TLS.
	H2C bool
	// TLS of the connections; the certificate must be for ServerName and signed by one of CA (PEM; the system's where
	// empty), unless it is Unchecked.
	TLS            bool
	ServerName, CA string
	Unchecked      bool
}

// Pickable reports whether new requests can go to the endpoint.
func (e *Endpoint) Pickable() bool { return e.Ready && !e.Terminating }

// Epoch identifies the endpoint's life as far as the cluster shows it: a new address is a new life even under the same
// identity. The source of its events is not part of it: the engine might be the same behind other ports.
func (e *Endpoint) Epoch() string {
	return e.ID.String() + "@" + e.Address + e.Socket
}
