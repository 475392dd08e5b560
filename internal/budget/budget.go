// Package budget bounds the memory that clients can make a process hold. There is one Budget, and everything that grows with
// clients draws on it: connections, requests with their headers and bodies, answers that are held back, and what streams of gateways hold.
//
// Memory is shared as packet buffers are, by a dynamic threshold (Choudhury and Hahne, 1998): an owner, which is a tenant
// or else a client's address, can hold at most ownerShare times what is free, and one connection of an address connectionShare
// times that. So a single owner can use most of the budget, and however much it takes, some is left for others. The owners need
// not be known in advance.
//
// Several greedy owners, one after the other, would leave nothing: each takes a part of what those before it have left. So the last
// part of the budget is not for them, but for owners that hold little, and for connections that hold little, of addresses that many
// clients share. The more such an address holds, the earlier its small connections find no room: many of them can be one greedy owner.
//
//	          Take                      Complete             Close
//	Account ---------> can be shed ---------------> held ----------> free
//	                        |
//	                        +-- no room: the slowest of the oldest is shed
//
// While there is no room, incomplete accounts are shed, the slowest of the oldest first, of the owner that exceeds its
// share: so clients cannot keep memory by sending slowly.
package budget

import (
	"sync"
	"sync/atomic"
	"time"
)

// Part is what memory is held for.
type Part uint8

// The parts.
const (
	// Bodies are bodies of requests to the proxy.
	Bodies Part = iota
	// Answers are beginnings of answers, held back until it is known that they are no errors.
	Answers
	// Streams are streams of gateways, with their headers and the bodies and messages that they hold.
	Streams
	// Connections are connections of clients to the proxy, with the headers of their requests, and connections of gateways, with the
	// answers that the gateways do not read.
	Connections
	// Requests are what the proxy needs for each request under way besides its body: goroutines, buffers, a connection to an engine.
	Requests
	numParts int = iota
)

// NumParts is the number of parts.
const NumParts = numParts

// String is the value of the metric label.
func (p Part) String() string {
	return [...]string{"bodies", "answers", "streams", "connections", "requests"}[p]
}

const (
	// ownerShare and connectionShare are how many times what is free an owner and a connection can hold.
	ownerShare, connectionShare = 2, 1
	// reserve of the budget is only for connections that hold at most 1/smallConnection of what is free; addressesReserve of it only for
	// those of them whose address holds at most ownerShare times what is free above ownersReserve; and ownersReserve only for owners
	// that hold at most 1/smallOwner of what is free.
	reserve, addressesReserve, ownersReserve = 3.0 / 16, 5.0 / 32, 1.0 / 8
	smallOwner, smallConnection              = 16, 32
	// shedAge and shedRate, in bytes per second, are how old an account must be and how slowly it must have grown to be shed.
	shedAge, shedRate = 2 * time.Second, 256 << 10
	// shedAmong is how many of an owner's oldest accounts are compared; heaviestAmong how many owners.
	shedAmong, heaviestAmong = 64, 256
	// fullAfter is how long there must have been no room until the budget counts as full, and nearlyFull the share that is
	// in use then.
	fullAfter, nearlyFull = 10 * time.Second, 0.875
)

// Budget is a number of bytes. Make it with New. It is safe for concurrent use.
type Budget struct {
	limit   int64
	now     func() time.Time
	divided bool

	mu          sync.Mutex // guards what follows, and the accounts
	held        int64
	dying       int64 // of held: of accounts that were shed and have not been closed
	parts       [numParts]int64
	owners      map[string]*holder
	connections map[string]*holder
	fullSince   time.Time // when there was no room for the first time since there was plenty
	refused     [numParts]uint64
	shed        [numParts]uint64
}

// holder is an owner, or a connection.
type holder struct {
	name  string
	held  int64
	users int // accounts
	// Accounts that can be shed, the oldest first; of owners only.
	first, last *Account
}

// New makes a budget of so many bytes. now is the clock.
func New(limit int64, now func() time.Time) *Budget {
	return &Budget{limit: limit, now: now, owners: map[string]*holder{}, connections: map[string]*holder{}}
}

// NewDivided makes a budget whose users have equal parts of it, and keep to them: only the limit applies.
func NewDivided(limit int64, now func() time.Time) *Budget {
	b := New(limit, now)
	b.divided = true
	return b
}

// Account is what one request or stream holds. Its methods can be called by any goroutine. The nil Account holds nothing:
// its Take fails.
type Account struct {
	budget     *Budget
	part       Part
	began      time.Time
	owner      *holder
	connection *holder      // nil for that of a tenant
	received   atomic.Int64 // received bytes, from which the rate is computed

	// Guarded by budget.mu.
	held       int64
	onShed     func() // nil when it cannot be shed any more
	gone       bool   // shed
	closed     bool
	prev, next *Account // in the owner's list
}

// Open begins an account. connection is empty if the owner is a tenant: other tenants can share its connection. shed is called at most
// once, before Complete or Close return: it must make the holder close the account soon, must not wait and must not use the budget. With a
// nil shed the account is never shed.
func (b *Budget) Open(part Part, owner, connection string, shed func()) *Account {
	a := &Account{budget: b, part: part, began: b.now(), onShed: shed}
	b.mu.Lock()
	defer b.mu.Unlock()
	a.owner = join(b.owners, owner)
	if connection != "" {
		a.connection = join(b.connections, connection)
	}
	if shed != nil {
		a.link()
	}
	return a
}

// join finds or makes a holder, for one more account.
func join(all map[string]*holder, name string) *holder {
	h := all[name]
	if h == nil {
		h = &holder{name: name}
		all[name] = h
	}
	h.users++
	return h
}

// leave is the end of join.
func leave(all map[string]*holder, h *holder) {
	if h.users--; h.users == 0 {
		delete(all, h.name)
	}
}

// Take holds n more bytes, unless there is no room for them: then it returns false and nothing has changed.
func (a *Account) Take(n int64) bool {
	if a == nil {
		return false
	}
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.gone || a.closed || !b.makeRoom(a, n) {
		return false
	}
	if !b.fullSince.IsZero() && float64(b.inUse()) < nearlyFull*float64(b.limit) {
		b.fullSince = time.Time{}
	}
	a.add(n)
	return true
}

// makeRoom sheds accounts until there is room for n more bytes of one, and reports whether there is. b.mu is held.
func (b *Budget) makeRoom(a *Account, n int64) bool {
	for {
		inTheWay := b.inTheWay(a, n)
		if inTheWay == nil {
			return true
		}
		victim := inTheWay.slowest(b.now(), a)
		if victim == nil {
			b.refused[a.part]++
			if b.fullSince.IsZero() {
				b.fullSince = b.now()
			}
			return false
		}
		b.kill(victim)
	}
}

// Must holds n more bytes, which are there already, and reports whether there was room for them.
func (a *Account) Must(n int64) (room bool) {
	if a == nil || a.Take(n) {
		return true
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	if !a.closed {
		a.add(n)
	}
	return false
}

// Put gives n bytes back.
func (a *Account) Put(n int64) {
	if a == nil || n == 0 {
		return
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	if !a.closed {
		a.add(-min(n, a.held))
	}
}

// add counts bytes. b.mu is held.
func (a *Account) add(n int64) {
	b := a.budget
	a.held += n
	a.owner.held += n
	if a.connection != nil {
		a.connection.held += n
	}
	b.held += n
	b.parts[a.part] += n
	if a.gone {
		b.dying += n
	}
}

// inTheWay returns the owner whose use leaves no room for n more bytes of an account; nil when there is room. b.mu is held.
func (b *Budget) inTheWay(a *Account, n int64) *holder {
	free := b.limit - b.inUse() - n
	if free < 0 {
		return b.heaviest(a.owner)
	}
	if b.divided {
		return nil
	}
	own, ofConnection := a.owner.held+n, int64(0)
	if a.connection != nil {
		ofConnection = a.connection.held + n
	}
	of := func(share float64) int64 { return int64(share * float64(b.limit)) }
	switch {
	case own <= free/smallOwner:
		return nil
	case own > ownerShare*free:
		return a.owner
	case a.connection != nil && ofConnection <= free/smallConnection &&
		(free >= of(addressesReserve) || own <= ownerShare*(free-of(ownersReserve))):
		return nil
	case ofConnection > connectionShare*free:
		return a.owner
	case free < of(reserve):
		return b.heaviest(a.owner)
	}
	return nil
}

func (b *Budget) inUse() int64 { return b.held - b.dying }

// heaviest is the owner that holds most among at most heaviestAmong of them, if it holds more than another one. b.mu is held.
func (b *Budget) heaviest(than *holder) *holder {
	left := heaviestAmong
	for _, h := range b.owners {
		if h.held > than.held && h.first != nil {
			than = h
		}
		if left--; left == 0 {
			break
		}
	}
	return than
}

// slowest is the account that is shed next, nil when there is none; never except. b.mu is held.
func (h *holder) slowest(now time.Time, except *Account) (victim *Account) {
	least := float64(shedRate)
	left := shedAmong
	for a := h.first; a != nil && left > 0; a = a.next {
		age := now.Sub(a.began)
		if age < shedAge {
			break
		}
		left--
		if rate := float64(a.received.Load()) / age.Seconds(); a != except && a.held > 0 && rate < least {
			victim, least = a, rate
		}
	}
	return victim
}

// kill sheds an account. b.mu is held.
func (b *Budget) kill(a *Account) {
	shed := a.onShed
	a.unlink()
	a.gone = true
	b.dying += a.held
	b.shed[a.part]++
	shed()
}

// Received counts received bytes: accounts are shed by their rate.
func (a *Account) Received(n int) { a.received.Add(int64(n)) }

// Complete records that all bytes have arrived: from now on the account is not shed. It is false if it was shed before.
func (a *Account) Complete() bool {
	if a == nil {
		return true
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.unlink()
	return !a.gone
}

// Shed reports whether the account was shed.
func (a *Account) Shed() bool {
	if a == nil {
		return false
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.gone
}

// Own moves an account to its tenant, once that is known, and reports whether the tenant has room for what the account holds. The
// account does not count for its connection any more.
func (a *Account) Own(owner string) (room bool) {
	if a == nil {
		return true
	}
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.closed || a.connection == nil && a.owner.name == owner {
		return true
	}
	linked := a.onShed
	a.unlink()
	a.owner.held -= a.held
	leave(b.owners, a.owner)
	a.owner = join(b.owners, owner)
	a.owner.held += a.held
	if a.onShed = linked; linked != nil {
		a.link()
	}
	if a.connection != nil {
		a.connection.held -= a.held
		leave(b.connections, a.connection)
		a.connection = nil
	}
	return !a.gone && b.makeRoom(a, 0)
}

// Close gives everything back. It can be called again.
func (a *Account) Close() {
	if a == nil {
		return
	}
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.closed {
		return
	}
	a.unlink()
	a.add(-a.held)
	a.closed = true
	leave(b.owners, a.owner)
	if a.connection != nil {
		leave(b.connections, a.connection)
	}
}

// link puts the account behind the others of its owner that can be shed. b.mu is held.
func (a *Account) link() {
	h := a.owner
	if a.prev = h.last; a.prev != nil {
		a.prev.next = a
	} else {
		h.first = a
	}
	h.last = a
}

// unlink takes the account out of those that can be shed. b.mu is held.
func (a *Account) unlink() {
	if a.onShed == nil {
		return
	}
	h := a.owner
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		h.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		h.last = a.prev
	}
	a.onShed, a.prev, a.next = nil, nil, nil
}

// Stats are what a budget is used for.
type Stats struct {
	Limit, Held int64
	// Of each Part: bytes held, takes that were refused, and accounts that were shed.
	Parts         [NumParts]int64
	Refused, Shed [NumParts]uint64
	// Owners that hold something, and the most that one of them holds.
	Owners int
	Most   int64
	// Full: some takes were refused for ten seconds, and nearly all is in use.
	Full bool
}

// Stats reads what the budget is used for.
func (b *Budget) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{Limit: b.limit, Held: b.held, Parts: b.parts, Refused: b.refused, Shed: b.shed, Owners: len(b.owners), Full: b.full()}
	for _, h := range b.owners {
		s.Most = max(s.Most, h.held)
	}
	return s
}

// Full reports whether there was no room for some for ten seconds, and nearly all is in use.
func (b *Budget) Full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.full()
}

func (b *Budget) full() bool {
	return !b.fullSince.IsZero() && b.now().Sub(b.fullSince) >= fullAfter && float64(b.inUse()) >= nearlyFull*float64(b.limit)
}

// Held is how many bytes are held of a part.
func (b *Budget) Held(part Part) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.parts[part]
}
