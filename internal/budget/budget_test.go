package budget

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// clock is one that a test sets.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newBudget(limit int64) (*Budget, *clock) {
	c := &clock{time.Unix(1e9, 0)}
	return New(limit, c.now), c
}

// TestOneOwnerLeavesRoomForOthers: however many accounts it opens, on however many connections.
func TestOneOwnerLeavesRoomForOthers(t *testing.T) {
	const limit = 1 << 20
	b, _ := newBudget(limit)
	for i := range 10_000 {
		b.Open(Bodies, "hog", fmt.Sprint(i), nil).Take(1 << 10)
	}
	if s := b.Stats(); s.Held > limit*2/3 || s.Held < limit/2 {
		t.Errorf("one owner holds %d of %d bytes", s.Held, limit)
	}
	for i := range 100 {
		if !b.Open(Bodies, fmt.Sprint("other", i), "c", nil).Take(1 << 10) {
			t.Fatalf("there is no room for owner %d", i)
		}
	}
}

func TestOneConnectionLeavesRoomForOthers(t *testing.T) {
	const limit = 1 << 20
	b, _ := newBudget(limit)
	for range 10_000 {
		b.Open(Bodies, "gateway", "one", nil).Take(1 << 10)
	}
	if s := b.Stats(); s.Held > limit/2 || s.Held < limit/3 {
		t.Errorf("one connection holds %d of %d bytes", s.Held, limit)
	}
	if !b.Open(Bodies, "gateway", "two", nil).Take(limit / 8) {
		t.Error("there is no room for another connection")
	}
}

// TestTheSlowestIsShedFirst: of those whose bytes are on their way, and only when there is no room.
func TestTheSlowestIsShedFirst(t *testing.T) {
	const limit, each = 1 << 20, 1 << 14
	b, c := newBudget(limit)
	shed := map[string]bool{}
	all := map[string]*Account{}
	open := func(owner, name string, received int) *Account {
		a := b.Open(Bodies, owner, name, func() { shed[name] = true })
		if !a.Take(each) {
			t.Fatalf("%s: there is no room", name)
		}
		a.Received(received)
		all[name] = a
		return a
	}
	for i := range 30 {
		open("hog", fmt.Sprint("fast", i), 100<<20)
	}
	open("hog", "slow", 1000)
	open("hog", "slowest", 10)
	open("hog", "complete", 1).Complete()
	c.at = c.at.Add(10 * time.Second)
	if len(shed) > 0 {
		t.Fatalf("%v are shed while there is room", shed)
	}
	// hog's allowance is used up: one more of its own takes the place of its slowest.
	for i := 0; len(shed) == 0 && i < 100; i++ {
		open("hog", fmt.Sprint("more", i), 100<<20)
	}
	if len(shed) != 1 || !shed["slowest"] || !all["slowest"].Shed() {
		t.Fatalf("%v are shed, want the slowest", shed)
	}
	if all["slowest"].Take(1) || all["slowest"].Complete() {
		t.Error("an account that was shed goes on")
	}
	all["slowest"].Close()
	open("hog", "last", 100<<20)
	if len(shed) != 2 || !shed["slow"] {
		t.Fatalf("%v are shed, want the slow one next", shed)
	}
	if b.Open(Bodies, "hog", "none", nil).Take(4 * each) {
		t.Error("the fast and the complete are shed")
	}
	if s := b.Stats(); s.Shed[Bodies] != 2 || s.Refused[Bodies] != 1 {
		t.Errorf("%+v", s)
	}
}

// TestSlowClientsDoNotTurnTheRestAway: 1,500 uploads that trickle, all from addresses of their own, and a client that is not
// slow finds room.
func TestSlowClientsDoNotTurnTheRestAway(t *testing.T) {
	const limit = 1 << 30
	b, c := newBudget(limit)
	var slow []*Account
	for i := range 1500 {
		a := b.Open(Bodies, fmt.Sprint("bot", i), fmt.Sprint("bot", i), func() {})
		for range 700 {
			if !a.Take(1 << 10) {
				break
			}
			a.Received(1 << 10)
		}
		slow = append(slow, a)
	}
	c.at = c.at.Add(time.Minute)
	for i := range 200 {
		a := b.Open(Bodies, "honest", fmt.Sprint(i), func() { t.Error("the honest one is shed") })
		if !a.Take(1 << 20) {
			t.Fatalf("request %d finds no room", i)
		}
		for _, a := range slow {
			if a.Shed() {
				a.Close()
			}
		}
		a.Close()
	}
}

func TestFullIsTold(t *testing.T) {
	b, c := newBudget(1000)
	for i := range 300 {
		b.Open(Streams, fmt.Sprint(i), fmt.Sprint(i), nil).Take(4)
	}
	full := b.Open(Streams, "x", "x", nil)
	for full.Take(1) {
	}
	if b.Full() {
		t.Error("it is full at once")
	}
	c.at = c.at.Add(fullAfter)
	if !b.Full() || !b.Stats().Full {
		t.Errorf("it is not full: %+v", b.Stats())
	}
}

// TestAccountsAddUp: whatever is done, what is held is the sum of what was taken and not given back, never above the limit,
// and nothing in the end.
func TestAccountsAddUp(t *testing.T) {
	const limit = 10_000
	b, c := newBudget(limit)
	r := rand.New(rand.NewPCG(1, 2))
	type model struct {
		a    *Account
		held int64
	}
	var all []*model
	for range 50_000 {
		c.at = c.at.Add(time.Duration(r.IntN(50)) * time.Millisecond)
		switch op := r.IntN(7); {
		case len(all) == 0 || op == 0 && len(all) < 100:
			var shed func()
			if r.IntN(2) == 0 {
				shed = func() {}
			}
			all = append(all, &model{a: b.Open(Part(r.IntN(numParts)), fmt.Sprint(r.IntN(5)), fmt.Sprint(r.IntN(9)), shed)})
		default:
			i := r.IntN(len(all))
			m := all[i]
			n := int64(r.IntN(500))
			switch op {
			case 1, 2, 3:
				if m.a.Take(n) {
					m.held += n
				}
				m.a.Received(int(n))
			case 4:
				m.a.Put(n)
				m.held -= min(n, m.held)
			case 5:
				m.a.Complete()
				m.a.Own(fmt.Sprint(r.IntN(5)))
			default:
				m.a.Close()
				all = append(all[:i], all[i+1:]...)
			}
		}
		var held, dying int64
		for _, m := range all {
			if held += m.held; m.a.gone {
				dying += m.held
			}
		}
		s, parts := b.Stats(), int64(0)
		for _, part := range s.Parts {
			parts += part
		}
		if s.Held != held || b.dying != dying || held-dying > limit || s.Held != parts {
			t.Fatalf("%+v, %d dying, want %d and %d", s, b.dying, held, dying)
		}
	}
	for _, m := range all {
		m.a.Close()
		m.a.Close()
	}
	if s := b.Stats(); s.Held != 0 || b.dying != 0 || len(b.owners)+len(b.connections) != 0 {
		t.Errorf("left: %+v", s)
	}
}

func TestAccountsOfManyGoroutines(t *testing.T) {
	b, _ := newBudget(1 << 20)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				a := b.Open(Bodies, fmt.Sprint(g%3), fmt.Sprint(i%5), func() {})
				a.Take(int64(i * 40))
				a.Received(i)
				a.Complete()
				a.Close()
			}
		})
	}
	wg.Wait()
	if s := b.Stats(); s.Held != 0 || s.Owners != 0 {
		t.Errorf("left: %+v", s)
	}
}

func BenchmarkAccount(b *testing.B) {
	budget := New(1<<30, time.Now)
	b.ReportAllocs()
	for b.Loop() {
		a := budget.Open(Bodies, "tenant", "127.0.0.1:1234", func() {})
		a.Take(4096)
		a.Received(2000)
		a.Complete()
		a.Close()
	}
}

// TestGreedyOwnersLeaveRoomForSmallOnes: however many there are, one after the other, whatever they hold can be shed or not.
func TestGreedyOwnersLeaveRoomForSmallOnes(t *testing.T) {
	const limit, need = 128 << 20, 400 << 10 // of a well-behaved client with a few requests
	b, _ := newBudget(limit)
	for i := range 12 {
		for c := range 20 {
			a := b.Open(Bodies, fmt.Sprint("greedy", i), fmt.Sprint(i, c), nil)
			for n := int64(64 << 20); n > 1<<10; {
				if !a.Take(n) {
					n /= 2
				}
			}
		}
	}
	if !b.Open(Requests, "small", "small", nil).Take(need) {
		t.Errorf("a client that needs little finds no room: %+v", b.Stats())
	}
}

// TestATenantHasItsShareOnly: also of what streams hold before they are known to be of the tenant. So it leaves room for the tenants that
// share its connection, and for others.
func TestATenantHasItsShareOnly(t *testing.T) {
	const limit, head, need = 128 << 20, 9 << 10, 400 << 10
	for _, connections := range []int{1, 20} {
		b, _ := newBudget(limit)
		for i := range 40_000 {
			a := b.Open(Streams, "gateway", fmt.Sprint("gateway", i%connections), nil)
			if !a.Take(head) {
				t.Fatalf("%d connections: the gateway has no room for stream %d of a tenant", connections, i)
			}
			if !a.Own("hog") || !a.Take(48<<10) {
				a.Close()
			}
		}
		if s := b.Stats(); s.Held > limit*2/3 {
			t.Errorf("%d connections: one tenant holds %d of %d bytes", connections, s.Held, limit)
		}
		small := b.Open(Streams, "gateway", "gateway0", nil)
		if !small.Take(head) || !small.Own("small") || !small.Take(need) {
			t.Errorf("%d connections: there is no room for another tenant: %+v", connections, b.Stats())
		}
	}
}

// TestAConnectionThatHoldsLittleIsNotRefusedForItsAddress: others have the same address, and hold as much as it can.
func TestAConnectionThatHoldsLittleIsNotRefusedForItsAddress(t *testing.T) {
	const limit = 128 << 20
	b, _ := newBudget(limit)
	for i := range 40 {
		a := b.Open(Streams, "address", fmt.Sprint("hog", i), nil)
		for n := int64(64 << 20); n > 1<<20; {
			if !a.Take(n) {
				n /= 2
			}
		}
	}
	if !b.Open(Streams, "address", "small", nil).Take(400 << 10) {
		t.Errorf("there is no room: %+v", b.Stats())
	}
	for i := range 10_000 { // all that is for such connections
		b.Open(Streams, "address", fmt.Sprint(i), nil).Take(40 << 10)
	}
	if s := b.Stats(); s.Held > limit*2/3 {
		t.Errorf("one address holds %d of %d bytes", s.Held, limit)
	}
}

// TestManySmallConnectionsLeaveRoomForOtherAddresses: of a few addresses, whose connections all hold little. A connection of an address
// that holds less finds room, although others of that address are many, too.
func TestManySmallConnectionsLeaveRoomForOtherAddresses(t *testing.T) {
	const limit, each, shared = 128 << 20, 64 << 10, 4 << 20
	b, _ := newBudget(limit)
	for hog := b.Open(Bodies, "tenant", "", nil); hog.Take(1 << 20); {
		if b.Stats().Held >= 50<<20 {
			break
		}
	}
	for i := range shared / each {
		b.Open(Connections, "shared", fmt.Sprint("shared", i), nil).Take(each)
	}
	for i := range 8 * limit / each {
		b.Open(Connections, fmt.Sprint("greedy", i%8), fmt.Sprint(i), nil).Take(each)
	}
	for _, n := range []int64{16 << 10, 400 << 10} {
		one := b.Open(Streams, "shared", "new", nil)
		if !one.Take(n) {
			t.Errorf("a connection finds no room for %d bytes: %+v", n, b.Stats())
		}
		one.Close()
	}
}
