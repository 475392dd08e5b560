package tokenizer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
	"unsafe"
)

const (
	gpt2 = "testdata/gpt2"
	qwen = "testdata/qwen2_5"
	// spmSmall is a vocabulary of this project, see hack/goldens.
	spmSmall = "testdata/spm"
)

// mixed is English and code of about n bytes, never the same line twice.
func mixed(n int, seed uint64) string {
	rng := rand.New(rand.NewPCG(seed, 1))
	words := strings.Fields("the quick brown fox jumps over lazy dogs while routers keep serving tokens from cached prefixes and " +
		"engines announce every block they store or evict internationalization Kubernetes didn't we'll 2024 3.14159 http://example.com/a?b=c")
	code := []string{
		"for i := 0; i < len(%s); i++ {\n\tsum += %s[i]\n}\n", "if err := %s.Do(ctx, %s); err != nil {\n\t\treturn fmt.Errorf(\"%s: %%w\", err)\n\t}\n",
		"def %s(self, %s):\n    return [x ** 2 for x in self.%s]\n\n", "SELECT %s, COUNT(*) FROM %s WHERE %s >= 10;\n", "{\"%s\": [1, 2, 3], \"%s\": null, \"%s\": 0.5}\n",
	}
	var b strings.Builder
	for b.Len() < n {
		if rng.IntN(3) == 0 {
			name := func() any { return words[rng.IntN(12)] + fmt.Sprintf("_%d", rng.IntN(100)) }
			line := code[rng.IntN(len(code))]
			args := []any{name(), name(), name()}
			fmt.Fprintf(&b, line, args[:strings.Count(line, "%s")]...)
			continue
		}
		for range 12 {
			b.WriteString(words[rng.IntN(len(words))])
			b.WriteByte(' ')
		}
		b.WriteString(".\n")
	}
	return b.String()
}

// slowMerge is byte-pair encoding as it is defined.
func slowMerge(t *Tokenizer, w string) (ids []uint32) {
	for _, b := range []byte(w) {
		ids = append(ids, t.byteID[b])
	}
	return slowMergeIDs(t, ids)
}

func slowMergeIDs(t *Tokenizer, ids []uint32) []uint32 {
	for {
		best, at := none, -1
		for i := 0; i+1 < len(ids); i++ {
			if m := t.pairs.get(ids[i], ids[i+1]); m < best {
				best, at = m, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, uint32(best))
	}
}

func TestMergingAgreesWithItsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	text := mixed(4000, 3) + "日本語のテキスト Ünïcödé 🙂🙂 " + strings.Repeat("a", 100)
	for _, dir := range []string{gpt2, qwen} {
		m := model(t, dir)
		e := newEncoder(m)
		for range 3000 {
			beg := rng.IntN(len(text))
			w := text[beg : beg+rng.IntN(min(len(text)-beg, 120))]
			e.out = e.out[:0]
			e.merge(w)
			if want := slowMerge(m, w); !slices.Equal(e.out, want) {
				t.Fatalf("%s: %q is %v, want %v", dir, w, e.out, want)
			}
			ids := slices.Clone(e.ids[:0])
			for _, b := range []byte(w) {
				ids = append(ids, m.byteID[b])
			}
			if e.ids = ids; len(ids) > 0 {
				e.out = e.out[:0]
				e.mergeLong()
				if want := slowMerge(m, w); !slices.Equal(e.out, want) {
					t.Fatalf("%s: with a heap %q is %v, want %v", dir, w, e.out, want)
				}
			}
		}
	}
}

// checkText states the laws of Encode: the tokens' bytes are the normalized text, the answer does not depend on what
// the encoder did before, and a word that has been seen is encoded as it was the first time.
func checkText(t *testing.T, m *Tokenizer, text string) {
	t.Helper()
	ids, err := m.Encode(nil, text, false)
	if !utf8.ValidString(text) {
		if !errors.Is(err, ErrText) {
			t.Fatalf("%q: error is %v", text, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	var got []byte
	for _, id := range ids {
		got = m.AppendToken(got, id)
	}
	want := text
	if m.spm != nil {
		if want = strings.ReplaceAll(text, spaceMark, " "); want != "" {
			want = " " + want
		}
		if strings.Contains(text, "<") { // maybe an added token, behind which there is a prefix too
			want = string(got)
		}
	} else if len(m.norm) > 0 {
		want = ""
		for piece := range strings.SplitSeq(text, "<|endoftext|>") { // added tokens keep the pieces beside them apart
			want += new(encoder).nfc(piece) + "<|endoftext|>"
		}
		want = strings.TrimSuffix(want, "<|endoftext|>")
	}
	if string(got) != want {
		t.Fatalf("%q: tokens spell %q, want %q", text, got, want)
	}
	e := newEncoder(m)
	e.text(text)
	if !slices.Equal(e.out, ids) {
		t.Fatalf("%q: a fresh encoder gives %v, a used one %v", text, e.out, ids)
	}
	e.text(text)
	if !slices.Equal(e.out[len(ids):], ids) {
		t.Fatalf("%q: the second time gives %v, the first %v", text, e.out[len(ids):], ids)
	}
	if prefix, err := m.Encode([]uint32{7}, text, true); err != nil || prefix[0] != 7 {
		t.Fatalf("%q: dst is not kept: %v, %v", text, prefix, err)
	}
}

func FuzzEncode(f *testing.F) {
	for _, s := range []string{
		"", " ", "Hello, world! I'll be 123 years old.", "  \n\n\t x\r\n", "<|endoftext|>", "a<|endoftext|>b", "日本語 ÄÖÜ e\u0301 \u1100\u1161\u11a8",
		"\xff", "HTMLParserſ'S", strings.Repeat("a", 200), strings.Repeat(" ", 100) + "x", "a\u0315\u0300\u05ae\u0300\u0062",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "<|") {
			text = strings.ReplaceAll(text, "<|im_", "<|endoftext|>")
		}
		for _, dir := range []string{gpt2, qwen, spmSmall} {
			checkText(t, model(t, dir), text)
		}
	})
}

func TestEncodeIsSafeForManyGoroutines(t *testing.T) {
	m := model(t, gpt2)
	texts := make([]string, 16)
	want := make([][]uint32, len(texts))
	for i := range texts {
		texts[i] = mixed(3000, uint64(i))
		var err error
		if want[i], err = m.Encode(nil, texts[i], false); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			var ids []uint32
			for i := range 40 {
				k := (i*7 + g) % len(texts)
				var err error
				if ids, err = m.Encode(ids[:0], texts[k], false); err != nil || !slices.Equal(ids, want[k]) {
					t.Errorf("text %d differs: %v", k, err)
				}
			}
		})
	}
	wg.Wait()
}

// countdown is a context that ends when its error has been asked for n times.
type countdown struct {
	context.Context
	n int
}

func (c *countdown) Err() error {
	if c.n--; c.n < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *countdown) Done() <-chan struct{} { return make(chan struct{}) }

func TestEncodeStopsWithItsContext(t *testing.T) {
	m := model(t, gpt2)
	for name, text := range map[string]string{
		"many words":        mixed(6*checkBytes, 5),
		"one word":          strings.Repeat("ab", MaxWord/2),
		"many added tokens": strings.Repeat("<|endoftext|>some words in between ", 1<<14),
	} {
		t.Run(name, func(t *testing.T) {
			dst := []uint32{1, 2}
			ctx := &countdown{Context: context.Background(), n: 3}
			ids, err := m.EncodeContext(ctx, dst, text, true)
			if !errors.Is(err, context.DeadlineExceeded) || len(ids) != 2 {
				t.Errorf("%d ids, error %v", len(ids), err)
			}
			if ctx.n != -1 {
				t.Errorf("the context was asked %d times after its end", -1-ctx.n)
			}
			ctx = &countdown{Context: context.Background(), n: len(text)}
			if ids, err = m.EncodeContext(ctx, nil, text, false); err != nil || len(ids) == 0 {
				t.Errorf("%d ids, error %v", len(ids), err)
			}
		})
	}
}

func TestTextThatIsRefused(t *testing.T) {
	m := model(t, gpt2)
	for name, text := range map[string]string{
		"not UTF-8":                      "a\xffb",
		"half a character":               "\xe6\x97",
		"a word beyond the limit":        "x " + strings.Repeat("a", MaxWord+1),
		"white space beyond the limit":   strings.Repeat(" ", MaxWord+2),
		"punctuation beyond the limit":   strings.Repeat("-", MaxWord+1),
		"a word beyond, added token too": "<|endoftext|>" + strings.Repeat("a", MaxWord+1),
	} {
		t.Run(name, func(t *testing.T) {
			if ids, err := m.Encode([]uint32{5}, text, false); !errors.Is(err, ErrText) || len(ids) != 1 {
				t.Errorf("%d ids, error %v", len(ids), err)
			}
			if ids, err := m.Encode(nil, "fine", false); err != nil || len(ids) == 0 {
				t.Errorf("the next text: %d ids, error %v", len(ids), err)
			}
		})
	}
}

func TestDecode(t *testing.T) {
	m := model(t, qwen)
	text := "Grüße, 世界! 🙂<|im_end|>\n"
	ids, err := m.Encode(nil, text, false)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Decode(ids); got != text {
		t.Errorf("Decode = %q, want %q", got, text)
	}
	if !slices.Contains(ids, 151645) {
		t.Errorf("no <|im_end|> among %v", ids)
	}
	if got := m.Decode([]uint32{m.byteID[0xe4], 1 << 30}); got != "\uFFFD" {
		t.Errorf("Decode of half a character and no token = %q", got)
	}
	if m.Size() != 151665 {
		t.Errorf("Size = %d", m.Size())
	}
}

func TestEncodeAllocatesNothing(t *testing.T) {
	text := mixed(20_000, 4)
	for _, dir := range []string{gpt2, qwen} {
		e := newEncoder(model(t, dir))
		e.text(text)
		out := e.out
		if n := testing.AllocsPerRun(20, func() {
			e.out = out[:0]
			e.text(text)
		}); n != 0 {
			t.Errorf("%s: %v allocations", dir, n)
		}
	}
}

func TestLongWordsTakeLittleMemory(t *testing.T) {
	m := model(t, gpt2)
	e := newEncoder(m)
	const n = 1 << 16
	e.text(strings.Repeat("ab", n/2))
	if got := cap(e.heap)*8 + cap(e.syms)*int(unsafe.Sizeof(symbol{})); got > 50*n {
		t.Errorf("%d bytes for a word of %d", got, n)
	}
	e.reset()
	if cap(e.heap)+cap(e.syms)+cap(e.ids) > 3*keepSyms {
		t.Error("the buffers of a long word are kept")
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, dir := range []string{gpt2, qwen} {
		m := model(b, dir)
		for _, tokens := range []int{1000, 8000, 32_000} {
			// All texts are different, so that words are known but not their order.
			var texts []string
			for seed := range 8 {
				texts = append(texts, mixed(tokens*17/5, uint64(seed)))
			}
			b.Run(fmt.Sprintf("%s/%dk", strings.TrimPrefix(dir, "testdata/"), tokens/1000), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(texts[0])))
				var ids []uint32
				i := 0
				for b.Loop() {
					var err error
					if ids, err = m.Encode(ids[:0], texts[i%len(texts)], false); err != nil {
						b.Fatal(err)
					}
					i++
				}
				b.ReportMetric(float64(len(ids)), "tokens")
			})
		}
	}
}

// BenchmarkEncodeWorst encodes a MiB of what is worst for merging and splitting.
func BenchmarkEncodeWorst(b *testing.B) {
	m := model(b, qwen)
	for name, text := range map[string]string{
		"one-word":    strings.Repeat("ab", MaxWord/2),
		"one-letter":  strings.Repeat("a", MaxWord),
		"spaces":      strings.Repeat(" ", MaxWord),
		"upper-case":  strings.Repeat("A", MaxWord),
		"marks":       "a" + strings.Repeat("\u0301", MaxWord/2-1),
		"brackets":    strings.Repeat("<", MaxWord),
		"line-feeds":  strings.Repeat("\n ", MaxWord/2),
		"apostrophes": strings.Repeat("'", MaxWord),
		"chinese":     strings.Repeat("中文字", MaxWord/9),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			var ids []uint32
			for b.Loop() {
				var err error
				if ids, err = m.Encode(ids[:0], text, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, dir := range []string{gpt2, qwen} {
		file := unzip(b, dir+"/tokenizer.json.gz")
		b.Run(strings.TrimPrefix(dir, "testdata/"), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(file)))
			for b.Loop() {
				if _, err := LoadReader(bytes.NewReader(file), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
