package circuit

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

const (
	// maxBreaks is the number of pods whose engines can abort on one request before it is not tried on others.
	maxBreaks = 2
	// Suspicion is how long a request is remembered after an engine has aborted on it, and refused when
	// maxBreaks have. An engine that has crashed is about to be back by then.
	Suspicion = 5 * time.Minute
	// maxCuts is the number of answers remembered that ended early for an unknown reason, for each request.
	maxCuts = 4
	// maxSuspicious is the most requests remembered; beyond it the oldest is forgotten.
	maxSuspicious = 1024
)

// Suspects are requests on which engines have aborted: the connection ended with no answer, or in the middle of one,
// after the engine was given the request. Some of them crash the engines, and would crash one after the other as they are
// tried again, by the proxy, by gateways and by clients. Requests are the same when
// method, path, query and body are, except for digits, hexadecimal letters, dashes and white space at both ends of the body: a
// client does not get around the guard by a nonce. Numbers in an array do distinguish requests: they are a prompt's token ids.
//
// An answer, even of a server error, is no break, and neither is a failure to connect. An answer that goes through to its
// end clears a request: it was on its way by chance when engines were restarted, or crashed on another one. Of a prompt
// that many ask for, some are always under way to say so.
//
// One table serves the proxy and gateways, so that a request cannot change the way. It is safe for concurrent use.
type Suspects struct {
	seed maphash.Seed
	// known is the number of entries, to be read without the lock: nearly always 0.
	known atomic.Int64

	mu  sync.Mutex
	all map[uint64]*suspicious // by mark, guarded by mu
}

type suspicious struct {
	pods   [maxBreaks]string // identities of those that have aborted
	breaks int               // of pods
	cuts   [maxCuts]cut      // the last answers that ended early for a reason that is not known
	last   time.Time
}

// cut is an answer through a gateway that ended early, because its client left or because its engine aborted.
type cut struct {
	endpoint *endpoint.Endpoint // nil for none
	circuit  *Circuit
	at       time.Time
}

// NewSuspects returns an empty table.
func NewSuspects() *Suspects {
	return &Suspects{seed: maphash.MakeSeed(), all: map[uint64]*suspicious{}}
}

// Mark is the hash by which a request is known again.
func (s *Suspects) Mark(method, path, query string, body []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, text := range [...]string{method, path, query} {
		_, _ = h.WriteString(text) // it cannot fail
		_ = h.WriteByte(0)
	}
	head, tail := body[:min(len(body), markEdge)], body[min(len(body), markEdge):]
	middle := tail[:max(0, len(tail)-markEdge)]
	inArray := writeAlike(&h, head, false)
	_, _ = h.Write(middle)
	writeAlike(&h, tail[len(middle):], inArray)
	return h.Sum64()
}

// MarkID is Mark for a request whose body is not known, by an id that all its attempts have.
func (s *Suspects) MarkID(method, path string, id []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, text := range [...]string{"id", method, path} {
		_, _ = h.WriteString(text)
		_ = h.WriteByte(0)
	}
	_, _ = h.Write(id)
	return h.Sum64()
}

// markEdge is how many bytes at both ends of a body are hashed without what varies: all of a small one, and where clients put
// numbers of their own in a large one. Hashing like that takes ten times as long.
const markEdge = 1 << 10

// writeAlike hashes text without the bytes that do not distinguish requests. inArray: text begins, and ends if it returns true,
// within an array of numbers. It takes at most markEdge bytes. No branch depends on whether a byte is hashed, because digits are
// as frequent as other bytes.
func writeAlike(h *maphash.Hash, text []byte, inArray bool) bool {
	var kept [markEdge]byte
	n := 0
	for len(text) > 0 {
		in := &outside
		if inArray {
			in = &inside
		}
		i := 0
		for i < len(text) && in[text[i]]&ends == 0 {
			c := text[i]
			kept[n%markEdge] = c
			n += int(in[c])
			i++
		}
		if text = text[i:]; len(text) > 0 {
			inArray = text[0] == '['
			if inArray {
				kept[n%markEdge] = '['
				n, text = n+1, text[1:]
			}
		}
	}
	_, _ = h.Write(kept[:n])
	return inArray
}

const (
	keeps = 1 << iota // the byte is hashed
	ends              // the array of numbers begins or ends before the byte
)

var (
	// outside and inside of an array of numbers, what becomes of each byte.
	outside, inside = alike(false), alike(true)
	// varies are the bytes that do not distinguish requests, arrayOfNumbers those that an array of token ids consists of.
	varies         = setOf("0123456789abcdefABCDEF- \t\r\n")
	arrayOfNumbers = setOf("0123456789, \t\r\n")
	space          = setOf(" \t\r\n")
)

// alike makes a table of writeAlike.
func alike(inArray bool) (table [256]uint8) {
	for c := range table {
		switch {
		case inArray && !arrayOfNumbers[c], !inArray && c == '[':
			table[c] = ends
		case inArray && !space[c], !varies[c]:
			table[c] = keeps
		}
	}
	return table
}

func setOf(bytes string) (set [256]bool) {
	for i := range len(bytes) {
		set[bytes[i]] = true
	}
	return set
}

// Any reports whether any request is suspect.
func (s *Suspects) Any() bool { return s.known.Load() > 0 }

// Broke notes that an engine has aborted on a request, and returns whether no other should be tried.
func (s *Suspects) Broke(mark uint64, pod string, now time.Time) (enough bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.entry(mark, now)
	one.broke(pod)
	return one.breaks == maxBreaks
}

// CutOff notes that the answer of an endpoint to a request ended early, and the gateway does not say whether the client left or
// the engine aborted. It counts as a break if the endpoint fails what it is sent afterwards, or does not listen: see Unsure. The
// last one of each pod is remembered.
func (s *Suspects) CutOff(mark uint64, of *endpoint.Endpoint, by *Circuit, at time.Time) {
	c := cut{of, by, at}
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.entry(mark, c.at)
	for i := range one.cuts {
		if before := one.cuts[i].endpoint; before == nil || before.ID.Pod == c.endpoint.ID.Pod || i == maxCuts-1 {
			copy(one.cuts[1:i+1], one.cuts[:i])
			break
		}
	}
	one.cuts[0] = c
}

// Answered notes that a request was answered to its end.
func (s *Suspects) Answered(mark uint64) {
	if !s.Any() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, mark)
	s.known.Store(int64(len(s.all)))
}

// Refused returns for how long a request must not be sent to any engine; 0 if it can be.
func (s *Suspects) Refused(mark uint64, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.find(mark, now)
	if one == nil {
		return 0
	}
	for _, c := range one.cuts {
		if c.endpoint != nil && c.circuit.FailsSince(c.at) {
			one.broke(c.endpoint.ID.Pod)
		}
	}
	if one.breaks == maxBreaks {
		return one.last.Add(Suspicion).Sub(now)
	}
	return 0
}

// Unsure returns the endpoints where answers to a request ended early, if it must not be sent to any engine should theirs
// have aborted. The caller finds out whether they listen, and calls Broke or Spare.
func (s *Suspects) Unsure(mark uint64, now time.Time) []*endpoint.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.find(mark, now)
	if one == nil || one.breaks == maxBreaks {
		return nil
	}
	var unsure []*endpoint.Endpoint
	for _, c := range one.cuts {
		if c.endpoint != nil && !slices.Contains(one.pods[:one.breaks], c.endpoint.ID.Pod) {
			unsure = append(unsure, c.endpoint)
		}
	}
	if one.breaks+len(unsure) < maxBreaks {
		return nil
	}
	return unsure
}

// Spare forgets that an answer of a pod ended early: its client has left.
func (s *Suspects) Spare(mark uint64, pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.all[mark]; one != nil {
		for i, c := range one.cuts {
			if c.endpoint != nil && c.endpoint.ID.Pod == pod {
				one.cuts[i] = cut{}
			}
		}
	}
}

// broke counts a pod, once.
func (one *suspicious) broke(pod string) {
	if one.breaks < maxBreaks && !slices.Contains(one.pods[:one.breaks], pod) {
		one.pods[one.breaks] = pod
		one.breaks++
	}
}

// entry gives the entry of a request on which an engine has aborted at a time, and makes it if need be. s.mu is held.
func (s *Suspects) entry(mark uint64, now time.Time) *suspicious {
	one := s.find(mark, now)
	if one == nil {
		s.makeRoom()
		one = &suspicious{}
		s.all[mark] = one
		s.known.Store(int64(len(s.all)))
	}
	one.last = now
	return one
}

// find gives the entry of a request, nil without one that still holds. s.mu is held.
func (s *Suspects) find(mark uint64, now time.Time) *suspicious {
	one := s.all[mark]
	if one == nil || now.Sub(one.last) < Suspicion {
		return one
	}
	delete(s.all, mark)
	s.known.Store(int64(len(s.all)))
	return nil
}

// makeRoom forgets the oldest entry when there are too many: if possible one without a break, because clients can make
// those by leaving. s.mu is held.
func (s *Suspects) makeRoom() {
	if len(s.all) < maxSuspicious {
		return
	}
	var oldest uint64
	var found *suspicious
	for mark, one := range s.all {
		if found == nil || one.before(found) {
			oldest, found = mark, one
		}
	}
	delete(s.all, oldest)
}

// before reports whether one is forgotten before other.
func (one *suspicious) before(other *suspicious) bool {
	if only := one.breaks == 0; only != (other.breaks == 0) {
		return only
	}
	return one.last.Before(other.last)
}
