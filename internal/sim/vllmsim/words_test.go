package vllmsim

import (
	"bytes"
	"compress/gzip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

func encodeWords(t testing.TB, text string) []uint32 {
	t.Helper()
	ids, err := Words{}.Encode(nil, text, true)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestWordsCutText(t *testing.T) {
	cases := map[string]struct {
		text string
		want []string
	}{
		"words take the space before them": {"two words", []string{"two", " words"}},
		"only one space":                   {"a   b", []string{"a", " ", " ", " b"}},
		"signs and breaks stand alone":     {"a, b!\n\n c", []string{"a", ",", " b", "!", "\n", "\n", " c"}},
		"long words are cut":               {"abcdefghijklmnopqrstuvwxyz", []string{"abcdefghijkl", "mnopqrstuvwx", "yz"}},
		"other scripts are words":          {"für 日本", []string{"für", " 日本"}},
		"a marker":                         {"x<|im_end|>\ny", []string{"x", imEnd, "\n", "y"}},
		"not quite a marker":               {"<|im", []string{"<", "|", "im"}},
		"a trailing space":                 {"a ", []string{"a", " "}},
		"nothing":                          {"", nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var want []uint32
			for _, piece := range tc.want {
				id, n := marker(piece)
				if n == 0 {
					id = pieceID(piece)
				}
				want = append(want, id)
			}
			if diff := cmp.Diff(want, encodeWords(t, tc.text)); diff != "" {
				t.Errorf("ids of %q (-want +got):\n%s", tc.want, diff)
			}
		})
	}
}

func TestWordsAppendAndStayBelowTheVocabulary(t *testing.T) {
	ids, err := Words{}.Encode([]uint32{7}, "x y", false)
	if err != nil || len(ids) != 3 || ids[0] != 7 {
		t.Errorf("%v, %v", ids, err)
	}
	for _, text := range []string{" t128000", " t999999", " t0123", " t", " tt1", " t12x"} {
		if ids := encodeWords(t, text); len(ids) != 1 || ids[0] < firstWord || ids[0] >= WordsVocabulary {
			t.Errorf("%q is %v", text, ids)
		}
	}
}

// TestGeneratedTextIsWords: what people read of a simulated engine without a tokenizer looks like words, and no two are the same.
func TestGeneratedTextIsWords(t *testing.T) {
	palette, err := Palette(Words{}, WordsVocabulary)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, id := range palette {
		word := Words{}.Decode([]uint32{id})
		if !lowerWord(word) || seen[word] {
			t.Fatalf("%d is %q", id, word)
		}
		seen[word] = true
		if back := encodeWords(t, word); len(back) != 1 || back[0] != id {
			t.Fatalf("%q is %v, not %d", word, back, id)
		}
	}
	for _, text := range []string{" badex", " badefx", " adefig", " badefigo", "badefi"} {
		if id, ok := generatedID(text); ok {
			t.Errorf("%q is the word %d", text, id)
		}
	}
}

func FuzzWords(f *testing.F) {
	for _, s := range []string{"", "a b", "<|im_start|>user\nhi<|im_end|>\n", " t1 t2", "\xff\x00", "<|im_start|"} {
		f.Add(s, "tail")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ids := encodeWords(t, a)
		for _, id := range ids {
			if id >= WordsVocabulary {
				t.Fatalf("id %d", id)
			}
		}
		// What is decoded tokenizes to itself.
		if back := encodeWords(t, Words{}.Decode(ids)); !slices.Equal(back, ids) {
			t.Fatalf("%v decodes to what is %v", ids, back)
		}
		// After a line break or a marker, a longer text begins with the shorter one's tokens.
		for _, end := range []string{"\n", imEnd} {
			head := encodeWords(t, a+end)
			if whole := encodeWords(t, a+end+b); !slices.Equal(whole[:len(head)], head) {
				t.Fatalf("%q followed by %q changes the tokens before", a+end, b)
			}
		}
	})
}

// loadTokenizer reads the vocabulary that package tokenizer tests with.
func loadTokenizer(t *testing.T) Text {
	t.Helper()
	packed, err := os.ReadFile("../../tokens/tokenizer/testdata/gpt2/tokenizer.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	vocabulary, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile("../../tokens/tokenizer/testdata/gpt2/tokenizer_config.json")
	if err != nil {
		t.Fatal(err)
	}
	out, err := tokenizer.LoadReader(vocabulary, bytes.NewReader(config))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPaletteTokenizesToItself(t *testing.T) {
	for name, text := range map[string]Text{"words": Words{}, "byte-level BPE": loadTokenizer(t)} {
		t.Run(name, func(t *testing.T) {
			words, err := Palette(text, WordsVocabulary)
			if err != nil {
				t.Fatal(err)
			}
			if len(words) != paletteSize {
				t.Errorf("%d words", len(words))
			}
			for _, n := range []int{1, 2, 500} {
				ids := words[:n]
				s := text.Decode(ids)
				back, err := text.Encode(nil, s, false)
				if err != nil || !slices.Equal(back, ids) {
					t.Errorf("%d words do not tokenize to themselves: %v", n, err)
				}
				// The turn before an answer does not change with it.
				turn := imStart + "assistant\n"
				before, err := text.Encode(nil, turn, false)
				if err != nil {
					t.Fatal(err)
				}
				if whole, err := text.Encode(nil, turn+s, false); err != nil || !slices.Equal(whole, append(before, ids...)) {
					t.Errorf("%d words in a chat do not tokenize to themselves: %v", n, err)
				}
			}
		})
	}
}

// silent is a tokenizer without words.
type silent struct{}

func (silent) Encode(dst []uint32, _ string, _ bool) ([]uint32, error) { return dst, nil }
func (silent) Decode(ids []uint32) string                              { return strings.Repeat("X", len(ids)) }

func TestNoPaletteWithoutWords(t *testing.T) {
	if _, err := Palette(silent{}, 100); err == nil {
		t.Error("no error")
	}
	if _, err := Start(Config{Text: silent{}}); err == nil {
		t.Error("an engine that cannot speak started")
	}
}

func BenchmarkWords(b *testing.B) {
	text := strings.Repeat("The quick brown fox jumps over the lazy dog, and so on.\n", 1000)
	dst := encodeWords(b, text)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = (Words{}).Encode(dst[:0], text, false); err != nil {
			b.Fatal(err)
		}
	}
}
