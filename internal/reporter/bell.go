package reporter

import "sync"

// bell wakes all listeners.
type bell struct {
	mu        sync.Mutex
	listeners map[chan struct{}]struct{} // guarded by mu
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.listeners {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// listen returns a channel that holds a token after the bell has rung, until end is called.
func (b *bell) listen() (c <-chan struct{}, end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch := make(chan struct{}, 1)
	if b.listeners == nil {
		b.listeners = map[chan struct{}]struct{}{}
	}
	b.listeners[ch] = struct{}{}
	return ch, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners, ch)
	}
}
