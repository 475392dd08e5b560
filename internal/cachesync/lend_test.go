package cachesync

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// borrowed is a world in which the second picker has started again and has borrowed from the first what that one received.
func borrowed(t *testing.T) (w *world, lender, p *simPicker) {
	t.Helper()
	w, lender = proven(t)
	p = w.pickers[1]
	w.faults.find = 3600
	w.startPicker(p)
	p.found = w.now.Add(time.Hour)
	w.exchange(p, false)
	if s := p.receiver.Status(); !s.Borrowed || !s.Owned || s.Proven || s.State != pb.State_STATE_UNVERIFIED || s.Held == 0 {
		t.Fatalf("borrowed: %+v", s)
	}
	return w, lender, p
}

// TestABorrowerGoesOnWhereTheLenderWas: the reporter sends it the changes since, not a snapshot.
func TestABorrowerGoesOnWhereTheLenderWas(t *testing.T) {
	w, _, p := borrowed(t)
	for range 3 {
		w.step()
	}
	p.found = w.now
	w.settle(testSettle)
	if s := p.receiver.Status(); s.Borrowed || !s.Proven || s.RepairedBlocks != 0 {
		t.Errorf("after the reporter has found it: %+v", s)
	}
	if s := p.sender.Stats(); s.Resumed != 1 || s.Replaced+s.Adopted != 0 {
		t.Errorf("the reporter told it all again: %+v", s)
	}
	compare(t, "the end", heldBy(p.writer), w.engine.keys(p.roots[0]))
}

// TestWhatIsBorrowedIsGivenBack: no block of a life that no reporter vouches for stays.
func TestWhatIsBorrowedIsGivenBack(t *testing.T) {
	for name, end := range map[string]func(w *world, lender *simPicker){
		"the engine has begun another life": func(w *world, _ *simPicker) {
			w.mirror.Begin(false)
			w.mirror.Mark(events.Position{}, events.Synced)
		},
		"the reporter has lost its engine": func(w *world, _ *simPicker) { w.mirror.Mark(events.Position{}, events.Disconnected) },
		"the lender hears no reporter":     func(_ *world, l *simPicker) { l.receiver.Lost() },
		"somebody else tells the lender":   func(_ *world, l *simPicker) { l.receiver.Release() },
	} {
		t.Run(name, func(t *testing.T) {
			w, lender, p := borrowed(t)
			w.settle(testSettle)
			if p.writer.Len() == 0 {
				t.Fatal("it was given back too early")
			}
			end(w, lender)
			w.settle(100 * time.Millisecond)
			s := p.receiver.Status()
			if n := p.writer.Len(); n != 0 && s.Epoch != w.mirror.epoch || s.Epoch != 0 && s.Epoch != w.mirror.epoch {
				t.Errorf("%d blocks are left: %+v", n, s)
			}
		})
	}
}

// The reporter's own word ends the loan: with another life everything goes at once.
func TestAnotherLifeEndsALoan(t *testing.T) {
	w, _, p := borrowed(t)
	w.mirror.Begin(false)
	w.mirror.Mark(events.Position{}, events.Synced)
	w.connect(p) // before the lender knows
	if p.receiver.Return() {
		t.Error("it is given back though the reporter is about to speak")
	}
	out, _ := p.sender.Next(w.now)
	w.send(p, out[0])
	if n := p.writer.Len(); n != 0 || out[0].GetBegin().GetMode() != pb.Begin_MODE_REPLACE {
		t.Errorf("%d blocks of another life stay after %v", n, out[0])
	}
}

// A stream that ends before its Begin has confirmed nothing.
func TestASilentStreamEndsALoan(t *testing.T) {
	w, _, p := borrowed(t)
	w.connect(p)
	p.receiver.Lost()
	if s := p.receiver.Status(); p.writer.Len() != 0 || s.Owned || s.Borrowed || s.Epoch != 0 {
		t.Errorf("%d blocks stay: %+v", p.writer.Len(), s)
	}
}

func TestOnlyWhatIsTrueIsLent(t *testing.T) {
	w, lender := proven(t)
	if at, _ := lender.receiver.Lend(simRoots[1].ID); at != nil {
		t.Error("keys of another root are lent")
	}
	_, _, borrower := borrowed(t)
	if at, _ := borrower.receiver.Lend(simRoots[0].ID); at != nil {
		t.Error("what is borrowed is lent")
	}
	for _, s := range []events.State{events.Disconnected, events.Degraded} {
		w.state(s)
		if at, _ := lender.receiver.Lend(simRoots[0].ID); at != nil {
			t.Errorf("it is lent in state %v", s)
		}
	}
	w.state(events.Synced)
	if at, _ := lender.receiver.Lend(simRoots[0].ID); at == nil {
		t.Error("nothing is lent")
	}
	w.send(lender, w.begin(lender, pb.Begin_MODE_REPLACE, w.mirror.epoch))
	if at, _ := lender.receiver.Lend(simRoots[0].ID); at != nil {
		t.Error("it is lent while a snapshot comes")
	}
}

func TestNonsenseIsNotBorrowed(t *testing.T) {
	_, lender := proven(t)
	at, changes := lender.receiver.Lend(simRoots[0].ID)
	fresh := func() (*Receiver, kvindex.Writer) {
		book := kvindex.New()
		w := book.Writer(book.Join())
		return NewReceiver(w, ReceiverOptions{Roots: simRoots[:1]}), w
	}
	change := func(f func(*pb.Position, *pb.Change)) (*pb.Position, []*pb.Change) {
		p, c := proto.CloneOf(at), proto.CloneOf(changes[0])
		f(p, c)
		return p, []*pb.Change{changes[0], c}
	}
	for name, f := range map[string]func(*pb.Position, *pb.Change){
		"no epoch":      func(p *pb.Position, _ *pb.Change) { p.Epoch = 0 },
		"no log":        func(p *pb.Position, _ *pb.Change) { p.Log = 0 },
		"other keys":    func(p *pb.Position, _ *pb.Change) { p.KeyId = "other" },
		"a removal":     func(_ *pb.Position, c *pb.Change) { c.Kind = pb.Change_KIND_REMOVED },
		"no such tier":  func(_ *pb.Position, c *pb.Change) { c.Tier = 9 },
		"no such group": func(_ *pb.Position, c *pb.Change) { c.Group = 99 },
		"a key of 0":    func(_ *pb.Position, c *pb.Change) { c.Keys[0] = 0 },
	} {
		r, w := fresh()
		if taken, err := r.Borrow(change(f)); taken || err == nil || w.Len() != 0 || !r.Empty() {
			t.Errorf("%s: taken %v, %v, %d blocks", name, taken, err, w.Len())
		}
	}
	r, _ := fresh()
	r.Welcome(time.Unix(1000, 0))
	if taken, err := r.Borrow(at, changes); taken || err != nil {
		t.Errorf("while the reporter is connected: taken %v, %v", taken, err)
	}
	r.Lost()
	if taken, err := r.Borrow(at, changes); !taken || err != nil {
		t.Errorf("afterwards: taken %v, %v", taken, err)
	}
	if taken, err := r.Borrow(at, changes); taken || err != nil {
		t.Errorf("twice: taken %v, %v", taken, err)
	}
}
