// Package cpu measures how busy a machine's processors are.
package cpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// errFormat marks a /proc/stat that is not as it should be.
var errFormat = errors.New("no line of all processors in /proc/stat")

// times are processor times since the machine's start, in ticks of all processors.
type times struct {
	busy, all uint64
}

// parse reads the first line of /proc/stat: "cpu" and user, nice, system, idle, iowait, irq, softirq, steal; what
// follows is counted in user already.
func parse(stat []byte) (times, error) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 5 || string(fields[0]) != "cpu" {
		return times{}, errFormat
	}
	var t times
	for i, field := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(string(field), 10, 64)
		if err != nil {
			return times{}, fmt.Errorf("%w: %w", errFormat, err)
		}
		t.all += n
		if i != 3 && i != 4 { // neither idle nor waiting for a disk
			t.busy += n
		}
	}
	return t, nil
}

// between is the busy part of the time from a to b, 0 to 1; 0 if none has passed.
func between(a, b times) float64 {
	if b.all <= a.all || b.busy < a.busy {
		return 0
	}
	return float64(b.busy-a.busy) / float64(b.all-a.all)
}

func read() (times, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return times{}, err
	}
	return parse(stat)
}

// Meter measures from its start on.
type Meter struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu                 sync.Mutex
	known              bool    // guarded by mu
	first, last        times   // guarded by mu
	now, highest, mean float64 // guarded by mu
}

// Start starts a meter that looks once a second, until Stop or until ctx ends. Where there is no /proc/stat it measures
// nothing, which is no error.
func Start(ctx context.Context) *Meter {
	ctx, cancel := context.WithCancel(ctx)
	m := &Meter{cancel: cancel}
	t, err := read()
	if err != nil {
		return m
	}
	m.known, m.first, m.last = true, t, t
	m.done.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.look()
			case <-ctx.Done():
				return
			}
		}
	})
	return m
}

func (m *Meter) look() {
	t, err := read()
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = between(m.last, t)
	m.highest = max(m.highest, m.now)
	m.mean = between(m.first, t)
	m.last = t
}

// Now is the busy part in the last second, negative where it is not known.
func (m *Meter) Now() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known {
		return -1
	}
	return m.now
}

// Stop ends the measurement: the mean since the start and the busiest second, both negative where they are not known.
func (m *Meter) Stop() (mean, highest float64) {
	m.cancel()
	m.done.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known {
		return -1, -1
	}
	return m.mean, m.highest
}
