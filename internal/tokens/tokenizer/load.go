package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
)

// maxID bounds the ids of a vocabulary, and so the table over them.
const maxID = 1 << 24

// MaxFile is the largest file that is loaded, in bytes. Loading takes about three times the size of tokenizer.json; one to two
// times the size remain in use.
const MaxFile = 256 << 20

// Load reads tokenizer.json, and tokenizer_config.json if there is one, from the directory dir. The error wraps
// ErrUnsupported when the model's rules are not known here.
func Load(dir string) (*Tokenizer, error) {
	t, err := LoadFS(os.DirFS(dir))
	if err != nil {
		return nil, fmt.Errorf("in %s: %w", dir, err)
	}
	return t, nil
}

// LoadFS is Load for files in another file system.
func LoadFS(files fs.FS) (*Tokenizer, error) {
	data, err := readFile(files, "tokenizer.json")
	if err != nil {
		return nil, fmt.Errorf("loading a tokenizer: %w", err)
	}
	config, err := readFile(files, "tokenizer_config.json")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("loading a tokenizer: %w", err)
	}
	t, err := load(data, config)
	if err != nil {
		return nil, fmt.Errorf("loading a tokenizer: %w", err)
	}
	return t, nil
}

func readFile(files fs.FS, name string) ([]byte, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return read(f, info.Size())
}

// LoadReader reads the contents of a tokenizer.json, and of a tokenizer_config.json unless config is nil.
func LoadReader(tokenizer, config io.Reader) (*Tokenizer, error) {
	data, err := read(tokenizer, lenOf(tokenizer))
	if err != nil {
		return nil, fmt.Errorf("reading a tokenizer: %w", err)
	}
	var settings []byte
	if config != nil {
		if settings, err = read(config, lenOf(config)); err != nil {
			return nil, fmt.Errorf("reading a tokenizer's configuration: %w", err)
		}
	}
	t, err := load(data, settings)
	if err != nil {
		return nil, fmt.Errorf("loading a tokenizer: %w", err)
	}
	return t, nil
}

// lenOf is the remaining length that a reader reports, as those of package bytes and strings do; 0 for others.
func lenOf(r io.Reader) int64 {
	if l, ok := r.(interface{ Len() int }); ok {
		return int64(l.Len())
	}
	return 0
}

// read reads all of r, which might have about size bytes, without a second copy of it if that is right.
func read(r io.Reader, size int64) ([]byte, error) {
	if size > MaxFile {
		return nil, fmt.Errorf("%w: %d bytes, of %d at most", ErrInvalid, size, MaxFile)
	}
	var b bytes.Buffer
	b.Grow(int(size) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(r, MaxFile+1)); err != nil {
		return nil, err
	}
	if b.Len() > MaxFile {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrInvalid, MaxFile)
	}
	return b.Bytes(), nil
}

// loader builds a Tokenizer. Its parts of the file are read in a fixed order, whatever theirs is.
type loader struct {
	*Tokenizer
	byteLevel   bool
	marked      bool // there is a pre-tokenizer of the sentencepiece style
	meta        metaspace
	afterSpaces bool
	unk         string
	hasUnk      bool
	fuse        bool
	byByte      bool

	vocabulary []byte
	merges     []byte
	entries    int               // of the vocabulary
	odd        map[string]uint32 // those that are not written in the byte-level alphabet
	class      *around           // the tokens that the class adds around a text; nil for none
}

// around is the tokens before and after a text.
type around struct{ prefix, suffix []uint32 }

func load(data, config []byte) (*Tokenizer, error) {
	if !json.Valid(data) {
		return nil, fmt.Errorf("%w: tokenizer.json is not JSON", ErrInvalid)
	}
	loadClasses()
	l := &loader{Tokenizer: &Tokenizer{addedByID: map[uint32]string{}, encoders: &sync.Pool{}}, odd: map[string]uint32{}}
	var model []byte
	err := eachField(bytes.TrimSpace(data), func(key, value []byte) error {
		switch string(key) {
		case "version", "truncation", "padding", "decoder": // none of them matters for ids: callers set their own limits
			return nil
		case "added_tokens":
			return decode(value, &l.added)
		case "normalizer":
			return l.normalizer(value)
		case "pre_tokenizer":
			return l.preTokenizer(value)
		case "post_processor":
			return l.postProcessor(value)
		case "model":
			model = value
			return nil
		}
		return fmt.Errorf("%w: field %q", ErrUnsupported, key)
	})
	if err != nil {
		return nil, err
	}
	if err := l.model(model); err != nil {
		return nil, err
	}
	if err := l.style(); err != nil {
		return nil, err
	}
	steps := []func() error{l.readVocabulary, l.singles, l.readMerges, l.checkAdded, func() error { return l.configure(config) }}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	l.markWhole()
	l.indexAdded()
	l.startMatters = l.prepends()
	l.cuts = newCutter(l.Tokenizer)
	l.serial = serials.Add(1)
	if a := l.class; a != nil && (!slices.Equal(a.prefix, l.prefix) || !slices.Equal(a.suffix, l.suffix)) {
		other := *l.Tokenizer
		other.prefix, other.suffix = a.prefix, a.suffix
		l.ofClass = &other
	}
	return l.Tokenizer, nil
}

// serials numbers the tokenizers of this process.
var serials atomic.Uint64

// model reads the settings of the BPE model; vocabulary and merges are kept for later.
func (l *loader) model(raw []byte) error {
	if kindOf(raw) != '{' {
		return fmt.Errorf("%w: no model", ErrInvalid)
	}
	typed := false
	err := eachField(raw, func(key, value []byte) error {
		ok := true
		switch string(key) {
		case "type":
			typed = true
			ok = string(value) == `"BPE"`
		case "vocab":
			l.vocabulary = value
		case "merges":
			l.merges = value
		case "dropout":
			ok = isNull(value) || string(value) == "0.0" || string(value) == "0"
		case "continuing_subword_prefix", "end_of_word_suffix":
			ok = isNull(value) || string(value) == `""`
		case "ignore_merges":
			l.direct = string(value) == "true"
		case "unk_token":
			if l.hasUnk = !isNull(value); l.hasUnk {
				return decode(value, &l.unk)
			}
		case "fuse_unk":
			l.fuse = string(value) == "true"
		case "byte_fallback":
			l.byByte = string(value) == "true"
		default:
			ok = false
		}
		if !ok {
			return fmt.Errorf("%w: model with %s %.40s", ErrUnsupported, key, value)
		}
		return nil
	})
	if err == nil && (!typed || l.vocabulary == nil || l.merges == nil) {
		return fmt.Errorf("%w: not a BPE model", ErrUnsupported)
	}
	return err
}

// style distinguishes the two kinds of vocabularies.
func (l *loader) style() error {
	switch {
	case l.byteLevel:
		return nil
	case len(l.splits) > 0:
		return fmt.Errorf("%w: split, but not byte-level", ErrUnsupported)
	case l.direct:
		return fmt.Errorf("%w: ignore_merges, but not byte-level", ErrUnsupported)
	case l.meta.first && len(l.norm) > 0: // where a piece begins could then be another place
		return fmt.Errorf("%w: Metaspace with the prefix first behind a normalizer", ErrUnsupported)
	}
	l.spm = &spm{meta: l.meta, afterSpaces: l.afterSpaces, byByte: l.byByte, fuse: l.fuse, unk: noID}
	return nil
}

// readVocabulary fills the table of words. Tokens that are not written in the byte-level alphabet can never be produced
// from a text; they keep their bytes unchanged.
func (l *loader) readVocabulary() error {
	size, most := 0, 0
	err := eachField(l.vocabulary, func(key, value []byte) error {
		id, err := tokenID(value)
		if err != nil {
			return err
		}
		l.entries++
		size += len(key)
		most = max(most, int(id)+1)
		return nil
	})
	if err != nil {
		return err
	}
	l.tokens = make([]tokenSpan, most, most+len(l.added))
	l.arena = make([]byte, 0, size)
	l.grow(l.entries)
	return eachField(l.vocabulary, func(key, value []byte) error {
		id, err := tokenID(value)
		if err != nil {
			return err
		}
		if l.tokens[id].n > 0 {
			return fmt.Errorf("%w: two tokens have the id %d", ErrInvalid, id)
		}
		off := len(l.arena)
		ok := true
		if l.spm != nil {
			l.arena = append(l.arena, key...)
		} else if l.arena, ok = appendBytes(l.arena, key); !ok {
			l.arena = append(l.arena, key...)
			l.odd[string(key)] = id
		}
		l.tokens[id] = tokenSpan{uint32(off), uint32(len(l.arena) - off)}
		if ok && len(key) > 0 {
			l.add(id)
		}
		return nil
	})
}

// growTo lengthens tokens so that id is an index.
func growTo(tokens []tokenSpan, id uint32) []tokenSpan {
	for int(id) >= len(tokens) {
		tokens = append(tokens, make([]tokenSpan, int(id)+1-len(tokens))...)
	}
	return tokens
}

func tokenID(raw []byte) (uint32, error) {
	id := uint32(0)
	for _, c := range raw {
		if c < '0' || c > '9' || id >= maxID {
			return 0, fmt.Errorf("%w: token id %.20q", ErrInvalid, raw)
		}
		id = id*10 + uint32(c-'0')
	}
	return id, nil
}

// readMerges fills the table of pairs: "left right", or ["left", "right"].
func (l *loader) readMerges() error {
	n := 0
	if err := eachElement(l.merges, func([]byte) error { n++; return nil }); err != nil {
		return err
	}
	l.pairs = newPairTable(n)
	rank := uint64(0)
	var m mergeReader
	return eachElement(l.merges, func(raw []byte) error {
		if err := m.read(raw, l.spm == nil); err != nil {
			return fmt.Errorf("merge %d: %w", rank, err)
		}
		a, haveA := l.id(view(m.word[:m.cut]))
		b, haveB := l.id(view(m.word[m.cut:]))
		whole, haveWhole := l.id(view(m.word))
		if !haveA || !haveB || !haveWhole {
			return fmt.Errorf("%w: merge %d is not in the vocabulary", ErrInvalid, rank)
		}
		if l.spm != nil {
			l.spm.join(a, b, view(m.word[:m.cut]), view(m.word[m.cut:]))
		}
		l.pairs.put(a, b, rank<<32|uint64(whole))
		rank++
		return nil
	})
}

// mergeReader reads one merge after another.
type mergeReader struct {
	word []byte // both sides
	cut  int    // where the right one begins

	text, spare []byte
	ends        []int
}

// read takes a merge in either form. Its texts are written in the byte-level alphabet, or as they are.
func (m *mergeReader) read(raw []byte, byteLevel bool) error {
	m.text, m.ends = m.text[:0], m.ends[:0]
	side := func(part []byte) error {
		if kindOf(part) != '"' {
			return fmt.Errorf("%w: not two texts", ErrInvalid)
		}
		var text []byte
		text, m.spare = unquote(part, m.spare)
		m.text = append(m.text, text...)
		m.ends = append(m.ends, len(m.text))
		return nil
	}
	switch kindOf(raw) {
	case '"':
		if err := side(raw); err != nil {
			return err
		}
		n := bytes.IndexByte(m.text, ' ')
		if n < 0 || bytes.IndexByte(m.text[n+1:], ' ') >= 0 {
			return fmt.Errorf("%w: not two texts", ErrInvalid)
		}
		m.text = append(m.text[:n], m.text[n+1:]...)
		m.ends = append(m.ends[:0], n, len(m.text))
	case '[':
		if err := eachElement(raw, side); err != nil {
			return err
		}
	}
	if len(m.ends) != 2 {
		return fmt.Errorf("%w: not two texts", ErrInvalid)
	}
	left, right := m.text[:m.ends[0]], m.text[m.ends[0]:]
	if !byteLevel {
		m.word, m.cut = m.text, len(left)
	} else {
		var ok, also bool
		m.word, ok = appendBytes(m.word[:0], left)
		m.cut = len(m.word)
		m.word, also = appendBytes(m.word, right)
		if !ok || !also {
			return fmt.Errorf("%w: not byte-level", ErrUnsupported)
		}
	}
	if m.cut == 0 || m.cut == len(m.word) {
		return fmt.Errorf("%w: an empty text", ErrInvalid)
	}
	return nil
}

// singles finds the tokens that words begin with: those of bytes, or of characters.
func (l *loader) singles() error {
	if l.spm != nil {
		return l.spm.singles(l)
	}
	for b := range l.byteID {
		id, ok := l.id(string([]byte{byte(b)}))
		if !ok {
			return fmt.Errorf("%w: no token for byte %#02x", ErrUnsupported, b)
		}
		l.byteID[b] = id
	}
	return nil
}

// markWhole finds the words that need no merging: all if the vocabulary takes precedence, else those that merge to
// themselves.
func (l *loader) markWhole() {
	e := &encoder{t: l.Tokenizer}
	for i := range l.slots {
		s := &l.slots[i]
		if s.key == 0 {
			continue
		}
		if l.direct {
			s.whole = true
			continue
		}
		word := l.bytes(s.id)
		if len(word) > MaxWord {
			continue
		}
		e.out = e.out[:0]
		e.merge(word)
		s.whole = len(e.out) == 1 && e.out[0] == s.id
	}
}

// checkAdded refuses added tokens whose ids the reference library would not take: it gives them the id that the
// vocabulary has for their content, else the next free one.
func (l *loader) checkAdded() error {
	next := uint32(l.entries)
	for _, a := range l.added {
		want, ok := l.odd[a.Content]
		if l.spm != nil {
			want, ok = l.id(a.Content)
		} else if !ok {
			var word []byte
			if word, ok = appendBytes(nil, []byte(a.Content)); ok {
				want, ok = l.id(string(word))
			}
		}
		if !ok {
			want = next
		}
		if a.ID != want || a.Content == "" {
			return fmt.Errorf("%w: added token %d would get the id %d", ErrUnsupported, a.ID, want)
		}
		next = max(next, want+1)
		l.tokens = growTo(l.tokens, a.ID)
	}
	return nil
}

// indexAdded builds the tries over the added tokens.
func (l *loader) indexAdded() {
	for i, a := range l.added {
		l.addedByID[a.ID] = a.Content
		trie, content := &l.raw, a.Content
		if a.Normalized {
			trie = &l.normalized
			content = l.normalizedText(content)
		}
		if *trie == nil {
			*trie = newAddedTrie()
		}
		(*trie).add(content, int32(i))
	}
}
