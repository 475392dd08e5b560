// Package tokenizer turns text into the token ids that an engine would, from the model's tokenizer.json. It is exact or
// refuses to load: whatever a file asks for that is not known here is an error. Known are vocabularies in the style of
// sentencepiece (Llama-2, Mistral, Yi, Gemma), and byte-level BPE with the splitting rules of GPT-2, cl100k (Llama-3,
// Qwen2, Qwen3.5), o200k, tekken, Kimi-K2, DeepSeek, those that split digits first (StarCoder, SmolLM, Command-R), and
// some more; see splitByRegex.
package tokenizer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

var (
	// ErrUnsupported is wrapped by errors of Load about files that might be right but ask for what is not known here.
	ErrUnsupported = errors.New("unsupported tokenizer")
	// ErrInvalid is wrapped by errors of Load about files that contradict themselves.
	ErrInvalid = errors.New("invalid tokenizer")
	// ErrText is returned for text that is not UTF-8, longer than MaxText, or with a word longer than MaxWord.
	ErrText = errors.New("the text is not UTF-8, or it or a word of it is too long")
)

// Limits in bytes. Merging a word takes up to 50 times its size in memory, so that the longest word decides how much one
// request can take.
const (
	// MaxText is the most text that is encoded at once: more tokens than any engine serves.
	MaxText = 16 << 20
	// MaxWord is the longest word, as the model's rules split a text: letters, digits, punctuation or spaces without
	// anything else among them.
	MaxWord = 1 << 18
	// maxPart is the longest text without a place to cut it, for models whose texts can be cut at all. The context is not
	// checked during the search for one word, which can be as long as this.
	maxPart = 2 << 20
	// maxMarks is the longest run of characters that Unicode normalizes together, combining marks for example.
	maxMarks = 1 << 16
)

// Tokenizer encodes text as one model does. It is immutable and safe for many goroutines.
type Tokenizer struct {
	vocab
	pairs  pairTable
	byteID [256]uint32
	// direct: a word of the vocabulary is that token, whatever the merges are (ignore_merges).
	direct bool

	norm       []normalization
	splits     []split
	spm        *spm // nil for a byte-level vocabulary
	added      []addedToken
	addedByID  map[uint32]string
	raw        *addedTrie // found in the unmodified text; nil for none
	normalized *addedTrie // found in what is left, once normalized; nil for none

	// prefix and suffix are added around a text by special.
	prefix, suffix []uint32
	ofClass        *Tokenizer // see OfClass

	cuts *cutter
	// startMatters: the ids of a piece depend on where it begins.
	startMatters bool
	serial       uint64 // identifies this Tokenizer in a Cache

	encoders *sync.Pool // of *encoder
}

// OfClass is t with other tokens around a text: those of the class that tokenizer_config.json names, if they differ from
// those of tokenizer.json; else nil. Before its release 5 the transformers library used the tokens of some classes; since
// then, which vLLM includes from v0.19.1 on, it uses those of tokenizer.json. DeepSeek-V3 is such a model: only its class
// begins a text with a token. Everything else is shared, including the content of a Cache.
func (t *Tokenizer) OfClass() *Tokenizer { return t.ofClass }

// Encode appends the ids of text to dst. special adds the model's tokens around a text, as /v1/completions does by default.
// If it returns an error, which is always ErrText, nothing is appended. Time is O(n log n) in the worst case; it allocates
// nothing beyond dst and buffers that are reused.
func (t *Tokenizer) Encode(dst []uint32, text string, special bool) ([]uint32, error) {
	return t.EncodeContext(context.Background(), dst, text, special)
}

// EncodeContext is Encode that stops early with the error of ctx, which it looks at about every 64 KiB of text.
func (t *Tokenizer) EncodeContext(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	if len(text) > MaxText {
		return dst, ErrText
	}
	e := t.encoder(ctx)
	defer t.release(e)
	e.out = dst
	if special {
		e.out = append(e.out, t.prefix...)
	}
	if e.valid(text) {
		e.text(text)
	}
	if special {
		e.out = append(e.out, t.suffix...)
	}
	if e.err != nil {
		return dst, e.err
	}
	return e.out, nil
}

// encoder is one for a single call, which must release it.
func (t *Tokenizer) encoder(ctx context.Context) *encoder {
	e, _ := t.encoders.Get().(*encoder)
	if e == nil {
		e = newEncoder(t)
	}
	if ctx.Done() != nil {
		e.ctx = ctx
	}
	return e
}

func (t *Tokenizer) release(e *encoder) {
	e.reset()
	t.encoders.Put(e)
}

// Size is the number of ids: all are below it.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// AppendToken appends the bytes of the token id; nothing when it is no token. A character can be spread over several
// tokens.
func (t *Tokenizer) AppendToken(dst []byte, id uint32) []byte {
	if s, ok := t.addedByID[id]; ok {
		return append(dst, s...)
	}
	s := t.bytes(id)
	if t.spm == nil {
		return append(dst, s...)
	}
	if t.spm.standsForByte(s) {
		if b := slices.Index(t.spm.bytes[:], id); b >= 0 {
			return append(dst, byte(b))
		}
	}
	for n := strings.Index(s, spaceMark); n >= 0; n = strings.Index(s, spaceMark) {
		dst = append(append(dst, s[:n]...), ' ')
		s = s[n+len(spaceMark):]
	}
	return append(dst, s...)
}

// Decode is the text of ids, added tokens included, without the space that the model puts before a text. Bytes that are
// not UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []uint32) string {
	var out []byte
	for _, id := range ids {
		out = t.AppendToken(out, id)
	}
	if t.prepends() && len(out) > 0 && out[0] == ' ' {
		out = out[1:]
	}
	return strings.ToValidUTF8(string(out), "\uFFFD")
}

// prepends reports whether something is put before a text.
func (t *Tokenizer) prepends() bool {
	return t.spm != nil && (t.spm.meta.always || t.spm.meta.first) ||
		slices.ContainsFunc(t.norm, func(n normalization) bool { return n.kind == normPrepend })
}

// view is b as a string, without a copy: b must not change.
func view(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	return unsafe.String(&b[0], len(b))
}

// TokenID finds the id of a token by its text, such as a special one; not ok if there is none.
func (t *Tokenizer) TokenID(text string) (id uint32, ok bool) {
	for i := range t.added {
		if t.added[i].Content == text {
			return t.added[i].ID, true
		}
	}
	return 0, false
}
