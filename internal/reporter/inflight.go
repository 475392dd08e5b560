package reporter

import (
	"context"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

const (
	// inFlightTimeout bounds a question to the pickers.
	inFlightTimeout = time.Second
	// silentPicker is how long a picker that does not answer might still have requests at the engine: one that has ended
	// has broken them off, and leaves the list of pickers.
	silentPicker = 30 * time.Second
)

// InFlight reports whether some picker has requests at the engine, on any rank. A picker that does not answer counts as if
// it had, for at most 30 seconds. One of an older release, which does not count them, is ignored.
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
		if err != nil {
			return p.silent(time.Now()) < silentPicker
		}
		if n > 0 {
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
	p.silentFrom = time.Time{}
}
