package events

import "github.com/kvasir-dev/kvasir/internal/budget"

// facts are what a mirror keeps beside the writer, for the same life.
type facts struct {
	again    *again
	adapters *adapters
}

func newFacts(share *budget.Share) facts {
	return facts{again: newAgain(share), adapters: &adapters{share: share}}
}

// end gives back what the facts take.
func (f facts) end() {
	f.again.share.Put(f.again.bytes)
	f.adapters.forgetAll()
}

// maxKept is how many elements the buffers of a mirror keep.
const maxKept = 4096

// trim drops the buffers for a batch if it was a large one.
func (m *mirror) trim() {
	if max(cap(m.stored), cap(m.keys), cap(m.groups.keys), cap(m.groups.later), cap(m.work), cap(m.again.dropping)) > maxKept {
		m.stored, m.keys, m.groups.keys, m.groups.later, m.work, m.again.dropping = nil, nil, nil, nil, nil, nil
	}
}
