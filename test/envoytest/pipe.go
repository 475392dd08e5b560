package envoytest

import (
	"errors"
	"io"
	"sync"
)

// pipe passes bytes from the reader of a picker's answers to the sender. It has no bound, so that the one
// never waits for the other: Envoy reads answers whatever becomes of them.
type pipe struct {
	mu     sync.Mutex
	some   sync.Cond
	pieces [][]byte
	err    error // after the pieces
	// atEnd is called by the reader, when io.EOF is read.
	atEnd func()
}

func newPipe() *pipe {
	p := &pipe{}
	p.some.L = &p.mu
	return p
}

func (p *pipe) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && len(b) > 0 {
		p.pieces = append(p.pieces, b)
		p.some.Signal()
	}
}

// end lets the reader find err behind what was put; io.EOF for the end.
func (p *pipe) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.some.Broadcast()
}

func (p *pipe) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err != nil
}

// next waits for a piece.
func (p *pipe) next() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.pieces) == 0 {
		if p.err != nil {
			return nil, p.err
		}
		p.some.Wait()
	}
	b := p.pieces[0]
	p.pieces = p.pieces[1:]
	return b, nil
}

// Read implements io.Reader.
func (p *pipe) Read(b []byte) (int, error) {
	piece, err := p.next()
	if errors.Is(err, io.EOF) && p.atEnd != nil {
		p.atEnd()
	}
	if err != nil {
		return 0, err
	}
	n := copy(b, piece)
	if n < len(piece) {
		p.mu.Lock()
		p.pieces = append([][]byte{piece[n:]}, p.pieces...)
		p.mu.Unlock()
	}
	return n, nil
}

// Close implements io.Closer: it ends reading.
func (p *pipe) Close() error {
	p.end(io.ErrClosedPipe)
	return nil
}
