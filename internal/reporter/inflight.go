package reporter

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/logging"
)

const (
	// inFlightTimeout bounds a question to the pickers.
	inFlightTimeout = time.Second
	// silentPicker is how long a picker that does not answer might still have requests at the engine: one that has ended
	// has broken them off, and leaves the list of pickers.
	silentPicker = 30 * time.Second
)

// InFlight reports whether some picker has requests at the engine, on any rank. A picker that does not answer counts as if
// it had, for at most 30 seconds, unless nothing listens at its address and no picker was ever reached there. One of an older
// release, which does not count them, is ignored.
func (r *Reporter) InFlight(ctx context.Context) bool {
	r.mu.Lock()
	pickers := make([]*picker, 0, len(r.pickers))
	for _, p := range r.pickers {
		pickers = append(pickers, p)
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, inFlightTimeout)
	defer cancel()
	busy := make([]bool, len(pickers))
	var asking sync.WaitGroup
	for i, p := range pickers {
		asking.Go(func() { busy[i] = r.inFlightOf(ctx, p) })
	}
	asking.Wait()
	for _, b := range busy {
		if b {
			return true
		}
	}
	return false
}

// inFlightOf is InFlight of one picker.
func (r *Reporter) inFlightOf(ctx context.Context, p *picker) bool {
	for _, k := range r.ranks {
		n, _, err := p.client.InFlight(ctx, endpoint.ID{Pod: r.cfg.Pod, Rank: k.number})
		switch {
		case err != nil && p.absent():
			return false
		case err != nil:
			silent := p.silent(time.Now())
			if silent == 0 {
				logging.Warn(r.cfg.Log, "Picker did not answer how many requests it has at the engine, waiting", "picker", p.addr,
					"atMost", silentPicker.String(), "reason", err.Error())
			}
			return silent < silentPicker
		case n > 0:
			p.answered()
			return true
		}
	}
	p.answered()
	return false
}

// silent notes that the picker gave no answer. It returns for how long it has given none.
func (p *picker) silent(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silentFrom.IsZero() {
		p.silentFrom = now
	}
	return now.Sub(p.silentFrom)
}

func (p *picker) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silentFrom, p.reached = time.Time{}, true
}

// absent reports whether nothing listens at the picker's address and nothing did before: no picker runs there that could have
// sent requests.
func (p *picker) absent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.reached && p.client.Refused() &&
		!slices.ContainsFunc(p.senders, func(s *cachesync.Sender) bool { return s != nil && s.Stats().Welcome })
}
