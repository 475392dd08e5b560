package logging

import (
	"bytes"
	"io"
	"slices"
	"sync"
	"time"
)

const (
	// maxWaiting is the most bytes of lines that wait for a log that does not take them.
	maxWaiting = 1 << 20
	// stall is how long a log can take nothing until lines do not wait for it any more.
	stall = time.Second
)

// writer keeps a log that takes nothing from stopping the program. A container's log is a pipe: when the process that reads it
// stops, as some do when the node's disk is full, each write waits for as long, and with it everything that logs. The writer waits
// for at most stall, once; then it keeps what fits and drops the rest, until the log goes on. Lines that were dropped, or that could
// not be written because the disk is full, are counted in a line of their own.
//
//	writes are waited for --stall--> stuck: they are not --a write has ended--> writes are waited for
type writer struct {
	out io.Writer
	// notice makes the line about lines that were lost.
	notice func(lost int) []byte

	mu      sync.Mutex // guards what follows
	waiting []byte
	written chan struct{} // closed when waiting is; nil while nothing waits
	lost    int
	running bool // drain is
	stuck   bool

	torn bool // the last line is not complete; only drain uses it
}

// Write implements io.Writer, of whole lines. It never fails, because the logger ignores errors.
func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	if len(w.waiting)+len(p) > maxWaiting {
		w.lost += bytes.Count(p, newline)
		w.mu.Unlock()
		return len(p), nil
	}
	w.waiting = append(w.waiting, p...)
	if w.written == nil {
		w.written = make(chan struct{})
	}
	written, stuck := w.written, w.stuck
	if !w.running {
		w.running = true
		go w.drain() // until nothing waits
	}
	w.mu.Unlock()
	if stuck {
		return len(p), nil
	}
	timer := time.NewTimer(stall)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
		w.mu.Lock()
		w.stuck = w.running
		w.mu.Unlock()
	}
	return len(p), nil
}

// drain writes what waits.
func (w *writer) drain() {
	for {
		w.mu.Lock()
		lines, written, lost := w.waiting, w.written, w.lost
		if written == nil {
			w.running = false
			w.mu.Unlock()
			return
		}
		w.waiting, w.written, w.lost = nil, nil, 0
		w.mu.Unlock()
		more := w.write(lines, lost)
		w.mu.Lock()
		w.lost += more
		w.stuck = false
		w.mu.Unlock()
		close(written)
	}
}

// write writes lines, behind a notice if some were lost before. It returns how many are lost now. Only drain calls it.
func (w *writer) write(lines []byte, before int) (lost int) {
	var start []byte
	if w.torn {
		start = append(start, '\n')
	}
	if before > 0 {
		start = append(start, w.notice(before)...)
	}
	text := slices.Concat(start, lines)
	n, err := w.out.Write(text)
	if n > 0 {
		w.torn = text[n-1] != '\n'
	}
	if err == nil {
		return 0
	}
	if n > 0 && n < len(text) && text[n] == '\n' && w.torn {
		n++ // the next write ends that line
	}
	if n < len(start) {
		return before + bytes.Count(lines, newline)
	}
	return bytes.Count(text[n:], newline)
}

var newline = []byte("\n")
