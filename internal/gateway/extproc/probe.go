package extproc

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

const (
	// dialTimeout bounds the wait for an endpoint that does not answer at all.
	dialTimeout = time.Second
	// An endpoint that does not answer is dead if maxSilent probes in a row got no answer, none of them longer than silentFor
	// after the one before, while the endpoint that has answered in its place takes connections. One probe can be lost, and
	// without that other endpoint the picker's own network can be the reason.
	maxSilent, silentFor = 3, 5 * time.Minute
	// An endpoint is probed at most once in probeEvery; what was found is used for that time.
	probeEvery = time.Second
	// maxProbes bounds the probes under way, maxProbed the endpoints remembered, and maxPassed the requests that wait for one
	// probe. What exceeds them is not judged.
	maxProbes, maxProbed, maxPassed = 16, 1024, 1024
)

// reach is whether an endpoint takes connections.
type reach uint8

const (
	unsure  reach = iota // it could not be asked
	silent               // it did not answer in time
	listens              // it accepted a connection
	refuses              // it refused one, or its host does not exist
)

// dial asks an endpoint for a connection.
func dial(ctx context.Context, address string) reach {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
	switch {
	case err == nil:
		_ = conn.Close()
		return listens
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH):
		return refuses
	case isTimeout(err):
		return silent
	}
	return unsure
}

func isTimeout(err error) bool {
	e := net.Error(nil)
	return errors.As(err, &e) && e.Timeout()
}

// probes find out whether an endpoint is dead that a gateway was given while another one has answered (picker.Passed). They
// run beside the requests, and do not delay any.
type probes struct {
	dial    func(context.Context, string) reach
	running sync.WaitGroup

	mu  sync.Mutex
	now int               // under way
	all map[string]*probe // by address
}

// probe is the last one of an endpoint.
type probe struct {
	at      time.Time
	done    bool
	found   reach
	silent  int // probes in a row, up to this one
	waiting []*picker.Passed
}

// judge reports to p whether its endpoint is dead, now or when that is known. It does not wait.
func (s *probes) judge(p *picker.Passed, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[p.Address()]
	switch {
	case one != nil && !one.done:
		if len(one.waiting) >= maxPassed {
			p.Silent()
			return
		}
		one.waiting = append(one.waiting, p)
		return
	case one != nil && now.Sub(one.at) < probeEvery:
		one.found.report(p)
		return
	case s.now >= maxProbes || one == nil && !s.room(now):
		p.Silent()
		return
	}
	next := &probe{at: now, waiting: []*picker.Passed{p}}
	if one != nil && now.Sub(one.at) <= silentFor {
		next.silent = one.silent
	}
	s.all[p.Address()] = next
	s.now++
	s.running.Go(func() { s.run(next, p.Address(), p.Instead()) })
}

// run probes an endpoint; instead is the one that has answered in its place. The request can end meanwhile.
func (s *probes) run(one *probe, address, instead string) {
	found, silences := s.dial(context.Background(), address), 0
	if found == silent {
		silences = one.silent + 1
		if silences >= maxSilent && s.dial(context.Background(), instead) == listens {
			found = refuses
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	one.done, one.found, one.silent = true, found, silences
	for _, p := range one.waiting {
		found.report(p)
	}
	one.waiting = nil
}

// room reports whether another endpoint can be remembered. s.mu is held.
func (s *probes) room(now time.Time) bool {
	if s.all == nil {
		s.all = map[string]*probe{}
	}
	if len(s.all) >= maxProbed {
		for address, one := range s.all {
			if one.done && now.Sub(one.at) >= probeEvery {
				delete(s.all, address)
			}
		}
	}
	return len(s.all) < maxProbed
}

// report reports what was found.
func (r reach) report(p *picker.Passed) {
	switch r {
	case refuses:
		p.Dead()
	case listens:
		p.Alive()
	default:
		p.Silent()
	}
}
