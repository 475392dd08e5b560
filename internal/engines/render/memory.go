package render

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

const (
	// ownBytes of the answers of each engine are outside of Options.Room.
	ownBytes = 256 << 10
	// scanCost and treeCost are the most that is made of each byte of an answer while it is read, in bytes: where only its ids are
	// copied, and where it is decoded whole, such as a list of empty objects, as answers to a proof's small requests are.
	scanCost, treeCost = 5, 40
	// idBytes is what an id takes, and listBytes a list of ids besides.
	idBytes, listBytes = 4, 24
	// idsPerByte and extraIDs limit the ids of a request of so many bytes: hardly any token has less than a byte of text, a
	// normaliser can make several characters of one, and a template adds its own.
	idsPerByte, extraIDs = 8, 64 << 10
)

// shares are what the answers of each engine take of a room, for engines that are being asked.
type shares struct {
	room *budget.Room
	mu   sync.Mutex
	of   map[engineKey]*share // guarded by mu
}

type share struct {
	*budget.Share
	users int // questions under way; guarded by shares.mu
}

// memory is what one question takes of the share of its engine. It belongs to the goroutine that asks.
type memory struct {
	shares *shares
	key    engineKey
	share  *share
	held   int
}

// open begins a question to an engine. The caller must close the memory.
func (s *shares) open(ep *endpoint.Endpoint) *memory {
	m := &memory{shares: s, key: keyOf(ep)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.share = s.of[m.key]; m.share == nil {
		m.share = &share{Share: s.room.Share(ownBytes)}
		s.of[m.key] = m.share
	}
	m.share.users++
	return m
}

// Take implements budget.Memory.
func (m *memory) Take(n int) bool {
	if !m.share.Take(n) {
		return false
	}
	m.held += n
	return true
}

// take takes n bytes, or returns budget.ErrFull.
func (m *memory) take(n int) error {
	if !m.Take(n) {
		return budget.ErrFull
	}
	return nil
}

// Put implements budget.Memory.
func (m *memory) Put(n int) {
	m.share.Put(n)
	m.held -= n
}

// close gives everything back. It can be called more than once.
func (m *memory) close() {
	if m.share == nil {
		return
	}
	m.Put(m.held)
	m.shares.mu.Lock()
	defer m.shares.mu.Unlock()
	if m.share.users--; m.share.users == 0 {
		m.share.Close()
		delete(m.shares.of, m.key)
	}
	m.share = nil
}

// read reads an answer of at most limit bytes into an empty buffer. What the buffer holds stays taken.
func (m *memory) read(buf *bytes.Buffer, from io.Reader, limit int64) error {
	if err := m.take(buf.Cap()); err != nil {
		return err
	}
	if err := budget.Read(buf, io.LimitReader(from, limit+1), m); err != nil {
		return err
	}
	if int64(buf.Len()) > limit {
		return fmt.Errorf("%w: more than %d bytes", ErrAnswer, limit)
	}
	return nil
}

// keep takes what the ids and items of an answer hold until they are released.
func (m *memory) keep(a *Answer) error {
	n := idBytes * cap(a.IDs)
	for _, more := range a.More {
		n += listBytes + idBytes*cap(more)
	}
	for i := range a.Items {
		n += itemBytes + len(a.Items[i].Key)
	}
	return m.take(n)
}

// plausible returns an error if an answer has more ids than can be of a request of so many bytes.
func (a *Answer) plausible(body int) error {
	ids := len(a.IDs)
	for _, more := range a.More {
		ids += len(more)
	}
	if ids > extraIDs+idsPerByte*body {
		return fmt.Errorf("%w: %d tokens for a request of %d bytes", ErrAnswer, ids, body)
	}
	return nil
}
