package cachesync

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"

	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// The file, little-endian: magic; epoch; position with state, next, known, proof; how many blocks were refused or
// unindexable; number of groups with a window, of them group, tokens and blocks, a bit for each other group and their tokens;
// number of roots, of them model and salt; number of blocks, of them hash, parent, extra, group, root,
// copies, tokens, in an order in which parents come before their children; a CRC-32C of all that.
const magic = "kvasir mirror 3\n"

// maxString bounds a model's name or a salt in the file.
const maxString = 64 << 10

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// ErrState is returned for a file that is not what Save wrote.
var ErrState = errors.New("not a saved mirror")

type saver struct {
	w   *bufio.Writer
	buf []byte
}

func (s *saver) uint(n uint64) { s.buf = binary.AppendUvarint(s.buf, n) }
func (s *saver) fixed(n uint64) {
	s.buf = binary.LittleEndian.AppendUint64(s.buf, n)
}
func (s *saver) string(v string) {
	s.uint(uint64(len(v)))
	s.buf = append(s.buf, v...)
}
func (s *saver) flush() error {
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	return err
}

// Save writes everything that the mirror holds, and its position in the engine's batches. The data contains token ids: it
// must stay in the pod. The mirror is locked meanwhile.
func (m *Mirror) Save(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := crc32.New(crcTable)
	s := &saver{w: bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)}
	s.buf = append(s.buf, magic...)
	s.fixed(m.epoch)
	s.uint(uint64(m.at.State))
	s.fixed(m.at.Next)
	known := uint64(0)
	if m.at.Known {
		known = 1
	}
	s.uint(known)
	s.fixed(m.at.Proof)
	s.uint(m.refused)
	s.uint(m.unindexable)
	s.rules(&m.rules)
	s.uint(uint64(len(m.roots)))
	for _, r := range m.roots {
		s.string(r.model)
		s.string(r.salt)
	}
	s.uint(uint64(len(m.ids)))
	if err := s.flush(); err != nil {
		return err
	}
	if err := m.saveRecords(s); err != nil {
		return err
	}
	if err := s.w.Flush(); err != nil {
		return err
	}
	_, err := w.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

func (s *saver) rules(r *rules) {
	s.uint(uint64(len(r.of)))
	for group, w := range r.of {
		s.uint(uint64(group))
		s.uint(uint64(w.tokens))
		s.uint(uint64(w.blocks))
	}
	s.uint(r.full)
	s.uint(uint64(r.fullTokens))
}

// rules reads what saver.rules wrote.
func (l *loader) rules() rules {
	r := newRules()
	for range l.uint(maxGroup + 1) {
		group := int32(l.uint(maxGroup))
		r.of[group] = rule{tokens: int(l.uint(maxBlockSize)), blocks: int(l.uint(maxWindowBlocks))}
		if w := r.of[group]; w.tokens == 0 || w.blocks == 0 {
			l.err = ErrState
		}
	}
	r.full, r.fullTokens = l.uint(1<<(maxGroup+1)-1), int(l.uint(maxBlockSize))
	return r
}

// saveRecords writes all records from the tops of the trees down.
func (m *Mirror) saveRecords(s *saver) (err error) {
	var stack []id
	done := 0
	m.arena.each(func(n id, r *record) {
		if r.up != 0 || err != nil {
			return
		}
		stack = append(stack[:0], n)
		for len(stack) > 0 && err == nil {
			n := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			r := m.arena.at(n)
			s.record(r, m.arena.tokens(n))
			err = s.flush()
			done++
			for c := r.down; c != 0; c = m.arena.at(c).next {
				stack = append(stack, c)
			}
		}
	})
	if err == nil && done != len(m.ids) {
		err = fmt.Errorf("%d of %d blocks hang together", done, len(m.ids))
	}
	return err
}

func (s *saver) record(r *record, tokens []uint32) {
	s.fixed(uint64(r.hash))
	s.fixed(uint64(r.parent))
	s.fixed(r.extra)
	s.uint(uint64(r.group))
	s.uint(uint64(r.root))
	for _, n := range r.copies {
		s.uint(uint64(n))
	}
	s.uint(uint64(len(tokens)))
	for _, t := range tokens {
		s.buf = binary.LittleEndian.AppendUint32(s.buf, t)
	}
}

// loader reads a file; its first error sticks.
type loader struct {
	r   *bufio.Reader
	sum hash.Hash32
	err error
	buf []byte
}

func (l *loader) bytes(n int) []byte {
	if cap(l.buf) < n {
		l.buf = make([]byte, n)
	}
	b := l.buf[:n]
	if l.err == nil {
		_, l.err = io.ReadFull(l.r, b)
	}
	if l.err != nil {
		clear(b)
	}
	_, _ = l.sum.Write(b) // it never fails
	return b
}

// ReadByte lets binary.ReadUvarint read.
func (l *loader) ReadByte() (byte, error) {
	b := l.bytes(1)[0]
	return b, l.err
}

// uint reads a number of at most most.
func (l *loader) uint(most uint64) uint64 {
	n, err := binary.ReadUvarint(l)
	if l.err == nil && (err != nil || n > most) {
		l.err = ErrState
	}
	if l.err != nil {
		return 0
	}
	return n
}

func (l *loader) fixed() uint64  { return binary.LittleEndian.Uint64(l.bytes(8)) }
func (l *loader) string() string { return string(l.bytes(int(l.uint(maxString)))) }

// Load fills a mirror, which has no senders yet, from what Save wrote: the epoch continues. It returns the position at
// which to continue with the engine. If it fails, the mirror is empty and in an epoch of its own.
func (m *Mirror) Load(r io.Reader) (events.Position, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset()
	at, err := m.load(&loader{r: bufio.NewReaderSize(r, 64<<10), sum: crc32.New(crcTable)})
	if err != nil {
		m.reset()
		m.epoch = m.options.NewID()
		return events.Position{}, fmt.Errorf("reading the saved mirror: %w", err)
	}
	m.at = at
	return at, nil
}

func (m *Mirror) load(l *loader) (events.Position, error) {
	if string(l.bytes(len(magic))) != magic {
		return events.Position{}, ErrState
	}
	epoch := l.fixed()
	at := events.Position{State: events.State(l.uint(uint64(events.Degraded))), Next: l.fixed(), Known: l.uint(1) == 1, Proof: l.fixed()}
	m.refused, m.unindexable = l.uint(math.MaxUint64), l.uint(math.MaxUint64)
	m.rules = l.rules()
	var roots []chainRoot
	for range l.uint(uint64(m.options.MaxBlocks)) {
		roots = append(roots, chainRoot{l.string(), l.string()})
		if l.err != nil {
			return events.Position{}, l.err
		}
	}
	for range l.uint(uint64(m.options.MaxBlocks + m.options.MaxGhosts)) {
		if m.loadRecord(l, roots); l.err != nil {
			return events.Position{}, l.err
		}
	}
	sum := l.sum.Sum32()
	if binary.LittleEndian.Uint32(l.bytes(4)) != sum || l.err != nil || epoch == 0 {
		return events.Position{}, ErrState
	}
	m.epoch = epoch
	m.dropLoose()
	return at, nil
}

func (m *Mirror) loadRecord(l *loader, roots []chainRoot) {
	hash, parent, extra := kvevent.Hash(l.fixed()), kvevent.Hash(l.fixed()), l.fixed()
	group := int32(l.uint(maxGroup))
	number := l.uint(uint64(len(roots)))
	var copies [kvblock.NumTiers]uint16
	for i := range copies {
		copies[i] = uint16(l.uint(1<<16 - 1))
	}
	size := int(l.uint(maxBlockSize))
	raw := l.bytes(4 * size)
	if _, twice := m.ids[blockID{hash, group}]; l.err == nil && (twice || size == 0 && !m.rules.has(group)) {
		l.err = ErrState
	}
	if l.err != nil {
		return
	}
	up := id(0)
	if size == 0 {
		if up = m.prefixRecord(hash); up == 0 {
			m.lost(&m.stats.Unkeyed, 1)
			return
		}
	}
	tokens := make([]uint32, size)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	n := m.create(hash, group, tokens, extra)
	if n == 0 {
		l.err = ErrState
		return
	}
	var root *chainRoot
	if number > 0 {
		root = &roots[number-1]
	}
	if size == 0 {
		m.hangBelow(n, up)
	} else {
		m.link(n, parent, root)
	}
	r := m.arena.at(n)
	m.changeClass(r, func() { r.copies = copies })
	m.again.copies += int(copies[kvblock.GPU])
	switch {
	case r.gone():
		m.queue(&m.ghosts, n, ghost)
	case !r.rooted:
		m.queue(&m.orphans, n, orphan)
	}
}

// dropLoose drops ghosts that nothing follows.
func (m *Mirror) dropLoose() {
	var loose []id
	m.arena.each(func(n id, r *record) {
		if r.gone() && (r.down == 0 || !r.rooted) {
			loose = append(loose, n)
		}
	})
	for _, n := range loose {
		if r := m.arena.at(n); r.used && r.gone() {
			m.drop(n)
		}
	}
	m.trim()
}
