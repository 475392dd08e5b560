package events

import "github.com/kvasir-dev/kvasir/internal/kvblock"

// disbelieve forgets the blocks on the GPU: they are more than the engine can have.
func (m *mirror) disbelieve() {
	m.impossible = true
	m.writer.ClearTier(kvblock.GPU)
	m.orphans.clear(kvblock.GPU)
	m.again.forgetAll()
	m.stored = m.stored[:0]
}

// Impossible implements DoubtfulSink.
func (m *mirror) Impossible() (was bool) {
	was, m.impossible = m.impossible, false
	return was
}
