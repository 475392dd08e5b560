package httpproxy

import (
	"hash/maphash"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxBreaks is the most pods whose engines may break off on one request: when as many have, it is tried on no other.
	maxBreaks = 2
	// suspicion is how long a request is remembered after an engine has broken off on it, and refused when maxBreaks
	// have. An engine that has crashed is about to be back by then.
	suspicion = 5 * time.Minute
	// maxSuspects is the most requests remembered; beyond it the oldest is forgotten.
	maxSuspects = 1024
)

// suspects are requests on which engines have broken off: the connection ended with no answer, or in the middle of one,
// after the engine was given the request. Some of them crash the engines, and would crash one after the other as they are
// tried again, by us and by their clients. Requests are the same when method, path, query and body are, byte for byte.
//
// An answer, even of a server error, is no break, and neither is a failure to connect. An answer that goes through to its
// end clears a request: it was on its way by chance when engines were restarted, or crashed on another one. Of a prompt
// that many ask for, some are always under way to say so.
type suspects struct {
	seed maphash.Seed
	// known is the number of entries, to be read without the lock: nearly always 0.
	known atomic.Int64

	mu  sync.Mutex
	all map[uint64]*suspect // by mark, guarded by mu
}

type suspect struct {
	pods   [maxBreaks]string // identities of those that have broken off
	breaks int               // of pods
	last   time.Time
}

func newSuspects() *suspects {
	return &suspects{seed: maphash.MakeSeed(), all: map[uint64]*suspect{}}
}

// mark is the hash by which a request is known again.
func (s *suspects) mark(r *http.Request, body []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, text := range [...]string{r.Method, r.URL.Path, r.URL.RawQuery} {
		_, _ = h.WriteString(text) // it cannot fail
		_ = h.WriteByte(0)
	}
	_, _ = h.Write(body)
	return h.Sum64()
}

// broke tells that an engine has broken off on a request, and is told whether no other is to be tried.
func (s *suspects) broke(mark uint64, pod string, now time.Time) (enough bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.find(mark, now)
	if one == nil {
		s.makeRoom()
		one = &suspect{}
		s.all[mark] = one
		s.known.Store(int64(len(s.all)))
	}
	one.last = now
	for _, before := range one.pods[:one.breaks] {
		if before == pod {
			return one.breaks == maxBreaks
		}
	}
	if one.breaks < maxBreaks {
		one.pods[one.breaks] = pod
		one.breaks++
	}
	return one.breaks == maxBreaks
}

// answered tells that a request was answered to its end.
func (s *suspects) answered(mark uint64) {
	if s.known.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, mark)
	s.known.Store(int64(len(s.all)))
}

// refused tells for how long a request is not to be sent to any engine; 0 if it may be.
func (s *suspects) refused(mark uint64, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.find(mark, now); one != nil && one.breaks == maxBreaks {
		return one.last.Add(suspicion).Sub(now)
	}
	return 0
}

// find gives the entry of a request, nil without one that still holds. s.mu is held.
func (s *suspects) find(mark uint64, now time.Time) *suspect {
	one := s.all[mark]
	if one == nil || now.Sub(one.last) < suspicion {
		return one
	}
	delete(s.all, mark)
	s.known.Store(int64(len(s.all)))
	return nil
}

// makeRoom forgets the oldest entry when there are too many. s.mu is held.
func (s *suspects) makeRoom() {
	if len(s.all) < maxSuspects {
		return
	}
	var oldest uint64
	var at time.Time
	for mark, one := range s.all {
		if at.IsZero() || one.last.Before(at) {
			oldest, at = mark, one.last
		}
	}
	delete(s.all, oldest)
}
