package cachesync

import (
	"reflect"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// id is the number of a record; 0 is none.
type id uint32

// maxViews is how many roots of keys are served at a time: the present one and the one that is replaced.
const maxViews = 2

// keyed is what a view knows of a block: the last complete key before it, and the last one up to its end. They are equal
// for a block that ends inside a key block, and both 0 while the block has no key.
type keyed struct{ base, last kvblock.Key }

// record is one block of the engine.
type record struct {
	hash   kvevent.Hash
	parent kvevent.Hash // meaningless in the first block of a chain
	extra  uint64       // what distinguishes the block besides its tokens
	keys   [maxViews]keyed
	group  int32
	// up is the parent, down the first child, next and prev are siblings. A block whose parent has no record is in
	// Mirror.waiting instead.
	up, down, next, prev id
	// root is the number of the chain's root, in first blocks only.
	root   uint32
	copies [kvblock.NumTiers]uint16
	size   uint16 // tokens
	// over is how many tokens are between the last complete key and the block's end, or unfit.
	over uint16
	// rooted reports that all blocks up to the first were known when the block arrived.
	rooted bool
	// leads means that base is the key of the chain's root.
	leads bool
	used  bool
	// queued has a bit for each class in whose queue the record is.
	queued uint8
}

// unfit marks blocks whose size does not fit the key block, and all that follow them.
const unfit = ^uint16(0)

func (r *record) first() bool { return r.root != 0 }
func (r *record) gone() bool  { return r.copies == [kvblock.NumTiers]uint16{} }

// maxBlockSize bounds the tokens of an engine's block.
const maxBlockSize = 4096

// chunkLen is the number of records allocated together.
const chunkLen = 256

// chunk has records of blocks of at most stride tokens.
type chunk struct {
	records [chunkLen]record
	tokens  []uint32
	stride  int
}

// arena keeps records and their tokens, without a pointer for each. Chunks are never given back: it stays as large as
// the engine's cache once was.
type arena struct {
	share  *budget.Share
	bytes  int // taken of share
	chunks []*chunk
	free   map[int][]id // by stride
}

func (a *arena) at(i id) *record {
	return &a.chunks[(i-1)/chunkLen].records[(i-1)%chunkLen]
}

// tokens of a block.
func (a *arena) tokens(i id) []uint32 {
	c, n := a.chunks[(i-1)/chunkLen], int(i-1)%chunkLen
	return c.tokens[n*c.stride:][:c.records[n].size]
}

// entryBytes is about what the mirror's maps, queues and views take for each record.
const entryBytes = 128

// chunkBytes is what a chunk takes.
func chunkBytes(stride int) int {
	return chunkLen * (int(reflect.TypeFor[record]().Size()) + 4*stride + entryBytes)
}

// end gives back what all chunks take.
func (a *arena) end() { a.share.Put(a.bytes) }

// take returns a fresh record for a block of that many tokens; 0 when there is no room.
func (a *arena) take(size int) id {
	stride := 8
	for stride < size {
		stride *= 2
	}
	if a.free == nil {
		a.free = map[int][]id{}
	}
	if len(a.free[stride]) == 0 {
		if !a.share.Take(chunkBytes(stride)) {
			return 0
		}
		a.bytes += chunkBytes(stride)
		a.chunks = append(a.chunks, &chunk{tokens: make([]uint32, chunkLen*stride), stride: stride})
		for i := id(len(a.chunks)) * chunkLen; i > id(len(a.chunks)-1)*chunkLen; i-- {
			a.free[stride] = append(a.free[stride], i)
		}
	}
	list := a.free[stride]
	i := list[len(list)-1]
	a.free[stride] = list[:len(list)-1]
	*a.at(i) = record{size: uint16(size), used: true}
	return i
}

// give takes a record back.
func (a *arena) give(i id) {
	*a.at(i) = record{}
	stride := a.chunks[(i-1)/chunkLen].stride
	a.free[stride] = append(a.free[stride], i)
}

// each calls f for every record in use.
func (a *arena) each(f func(i id, r *record)) {
	for c, chunk := range a.chunks {
		for n := range chunk.records {
			if r := &chunk.records[n]; r.used {
				f(id(c*chunkLen+n+1), r)
			}
		}
	}
}
