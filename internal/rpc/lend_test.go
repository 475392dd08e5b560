package rpc

import (
	"context"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/replicas"
)

// startLender starts a picker that lends and borrows, for an endpoint that has no road but its reporter.
func startLender(t *testing.T, change func(*Target)) *picker {
	t.Helper()
	service := &PeerService{Auth: Anybody{}, Inbox: replicas.NewInbox(nil, 1), Incarnation: 1}
	p := startPicker(t, "127.0.0.1:0", ServerOptions{Peers: service})
	p.server.Set("pool", nil)
	p.target.OtherRoad = false
	if change != nil {
		change(&p.target)
	}
	p.server.Set("pool", []Target{p.target})
	return p
}

// borrowsFrom lets a picker borrow from another until the test ends, or stop.
func (p *picker) borrowsFrom(lender *picker) (stop func()) {
	p.t.Helper()
	c, err := Dial(lender.addr, DialOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var borrowing sync.WaitGroup
	borrowing.Go(func() { p.server.Borrow(ctx, c) })
	stop = sync.OnceFunc(func() { cancel(); borrowing.Wait(); _ = c.Close() })
	p.t.Cleanup(stop)
	return stop
}

// pushTo lets a reporter report to another picker, too.
func (r *reporter) pushTo(t *testing.T, p *picker) {
	t.Helper()
	c, err := Dial(p.addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var pushing sync.WaitGroup
	pushing.Go(func() { _ = c.Push(ctx, cachesync.NewSender(r.mirror, "uid-1", 0), nil) }) // until the test ends
	t.Cleanup(func() { cancel(); pushing.Wait(); _ = c.Close() })
}

const lentBlocks = 300

// lent is a picker that has borrowed from another what a reporter has sent to that one.
func lent(t *testing.T) (lender, p *picker, r *reporter, tokens []uint32) {
	t.Helper()
	lender, p = startLender(t, nil), startLender(t, nil)
	r = startReporter(t, lender.addr, DialOptions{})
	e, tokens := chain(0, lentBlocks)
	e.Tokens = tokens
	r.mirror.Apply(&kvevent.Batch{Events: []kvevent.Event{e}}, events.Position{})
	eventually(t, "the lender knows", func() bool {
		return lender.status().Proven && lender.match(lender.target.Roots[0], tokens) == lentBlocks
	})
	p.borrowsFrom(lender)
	eventually(t, "it is borrowed", func() bool { return p.status().Borrowed })
	if n := p.match(p.target.Roots[0], tokens); n != lentBlocks {
		t.Fatalf("%d blocks match, want %d", n, lentBlocks)
	}
	return lender, p, r, tokens
}

// TestANewReplicaBorrowsAndGoesOn: what a replica has borrowed is continued by the endpoint's reporter, without a snapshot.
func TestANewReplicaBorrowsAndGoesOn(t *testing.T) {
	lender, p, r, tokens := lent(t)
	r.pushTo(t, p)
	eventually(t, "the reporter has shown that it is so", func() bool { s := p.status(); return s.Proven && !s.Borrowed })
	if s := p.status(); s.Resyncs != [cachesync.NumReasons]uint64{} || s.RepairedBlocks != 0 {
		t.Errorf("it received more than changes: %+v", s.Status)
	}
	lender.server.Close() // nothing hangs on the lender any more
	if n := p.match(p.target.Roots[0], tokens); n != lentBlocks || p.asked() != "own:pooluid-1" {
		t.Errorf("%d blocks match, and %q", n, p.asked())
	}
}

// TestALoanEndsWithItsVouching: borrowed blocks that no reporter vouches for are removed.
func TestALoanEndsWithItsVouching(t *testing.T) {
	for name, end := range map[string]func(lender *picker, r *reporter){
		"the engine begins another life": func(_ *picker, r *reporter) {
			r.mirror.Begin(false)
			r.mirror.Mark(events.Position{}, events.Synced)
		},
		"the reporter leaves the lender": func(_ *picker, r *reporter) { r.stop() },
		"the lender ends":                func(l *picker, _ *reporter) { l.server.Close() },
		"the endpoint leaves the lender": func(l *picker, _ *reporter) { l.server.Set("pool", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			lender, p, r, tokens := lent(t)
			end(lender, r)
			eventually(t, "it is given back", func() bool { s := p.status(); return !s.Borrowed && !s.Owned })
			if n := p.match(p.target.Roots[0], tokens); n != 0 {
				t.Errorf("%d blocks are still there", n)
			}
		})
	}
}

// TestABorrowerEnds: with the link to the lender, or the target itself.
func TestABorrowerEnds(t *testing.T) {
	lender, p, _, _ := lent(t)
	p.server.Set("pool", nil)
	if all := p.server.poor(); len(all) != 0 {
		t.Errorf("%d endpoints that have gone are wanted", len(all))
	}
	p.server.Set("pool", []Target{p.target}) // new state: it borrows again
	eventually(t, "it is borrowed again", func() bool { return p.status().Borrowed })
	lender.server.Close()
	eventually(t, "it is given back", func() bool { return !p.status().Borrowed })
}

// What cannot be continued is not borrowed.
func TestOnlyTheSameIsBorrowed(t *testing.T) {
	lender := startLender(t, nil)
	r := startReporter(t, lender.addr, DialOptions{})
	e, tokens := chain(0, 10)
	e.Tokens = tokens
	r.mirror.Apply(&kvevent.Batch{Events: []kvevent.Event{e}}, events.Position{})
	eventually(t, "the lender knows", func() bool { return lender.status().Proven })
	var all []*picker
	for name, change := range map[string]func(*Target){
		"another root":       func(t *Target) { t.Roots[0].ID = "another" },
		"another model":      func(t *Target) { t.Roots[0].Model = "another" },
		"other blocks":       func(t *Target) { t.Roots[0].BlockTokens *= 2 },
		"another pod":        func(t *Target) { t.Endpoint.ID.Pod = "uid-2" },
		"there is a way":     func(t *Target) { t.OtherRoad = true },
		"no roots are known": func(t *Target) { t.Roots = nil },
	} {
		p := startLender(t, change)
		stop := p.borrowsFrom(lender)
		all = append(all, p)
		defer func() {
			stop()
			if s := p.status(); s.Owned || s.Borrowed {
				t.Errorf("%s: it was borrowed", name)
			}
		}()
	}
	same := startLender(t, nil)
	same.borrowsFrom(lender)
	eventually(t, "the same is borrowed", func() bool { return same.status().Borrowed })
	if len(all) == 0 {
		t.Error("nothing was tried")
	}
}
