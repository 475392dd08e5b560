package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestCuttingLongWordsChangesNothing compares words taken in pieces with the definition, over what no space divides.
func TestCuttingLongWordsChangesNothing(t *testing.T) {
	m := model(t, spmSmall)
	rng := rand.New(rand.NewPCG(2, 2))
	alphabet := []rune("▁▁eanthe>><0xA9\n\n中文字é🙂.,\x00")
	cut := 0
	for range 3000 {
		var b strings.Builder
		for range 1 + rng.IntN(150) {
			b.WriteRune(alphabet[rng.IntN(len(alphabet))])
		}
		w := b.String()
		want := m.spm.symbols(&m.vocab, nil, w)
		want = slowMergeIDs(m, want)
		e := newEncoder(m)
		e.spmPiece(w)
		if !slices.Equal(e.out, want) {
			t.Fatalf("%q: cut %v, whole %v", w, e.out, want)
		}
		e.out = e.out[:0]
		e.longWord(w)
		if !slices.Equal(e.out, want) {
			t.Fatalf("%q: as a long word %v, whole %v", w, e.out, want)
		}
		runes := []rune(w)
		for i := 1; i < len(runes); i++ {
			if m.spm.canCut(&m.vocab, runes[i-1], runes[i]) {
				cut++
			}
		}
	}
	if cut == 0 {
		t.Error("nothing was cut")
	}
}

func TestATextWithoutSpacesHasNoLimit(t *testing.T) {
	m := model(t, spmSmall)
	text := strings.Repeat("中文字é🙂", MaxWord/10)
	ids, err := m.Encode(nil, text, false)
	if err != nil || len(ids) < MaxWord/10 {
		t.Errorf("%d ids of %d bytes, %v", len(ids), len(text), err)
	}
}

func TestDecodeOfMarksAndBytes(t *testing.T) {
	m := model(t, spmSmall)
	for _, text := range []string{"Hello, world!", " two  spaces ", "\t日本語 🙂\x00", "<s>the end</s>", ""} {
		ids, err := m.Encode(nil, text, false)
		if err != nil {
			t.Fatal(err)
		}
		// An added token before a text keeps the space that is put between them.
		want := strings.Replace(text, "<s>the", "<s> the", 1)
		if got := m.Decode(ids); got != want {
			t.Errorf("%q becomes %v, and that %q", text, ids, got)
		}
	}
	if got := m.Decode([]uint32{m.spm.bytes[0xe4]}); got != utf8Error {
		t.Errorf("half a character is %q", got)
	}
}

const utf8Error = "\uFFFD"

func TestRunePairs(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	var p runePairs
	if p.has('中', '文') || p.has('a', 'b') {
		t.Error("an empty set has something")
	}
	model := map[[2]rune]bool{}
	pick := func() rune {
		return []rune("abz~\x00▁中文字é🙂" + string(rune(utf8.MaxRune)))[rng.IntN(12)] + rune(rng.IntN(20))
	}
	for range 20_000 {
		x, y := pick(), pick()
		if p.has(x, y) != model[[2]rune{x, y}] {
			t.Fatalf("%q %q: %v", x, y, p.has(x, y))
		}
		if rng.IntN(3) == 0 {
			p.add(x, y)
			model[[2]rune{x, y}] = true
		}
	}
}

func TestPrefixOfTheConfiguration(t *testing.T) {
	file := unzip(t, spmSmall+"/tokenizer.json.gz")
	for name, tc := range map[string]struct {
		config string
		ok     bool
	}{
		"nothing said":          {`{"tokenizer_class":"LlamaTokenizer","bos_token":"<s>"}`, true},
		"as in the file":        {`{"tokenizer_class":"LlamaTokenizer","bos_token":"<s>","add_prefix_space":true}`, true},
		"no prefix":             {`{"tokenizer_class":"LlamaTokenizer","bos_token":"<s>","add_prefix_space":false}`, false},
		"not the legacy rules":  {`{"tokenizer_class":"LlamaTokenizer","bos_token":"<s>","add_prefix_space":true,"legacy":false}`, false},
		"a class without rules": {`{"tokenizer_class":"PreTrainedTokenizerFast","add_prefix_space":false}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := LoadReader(strings.NewReader(string(file)), strings.NewReader(tc.config))
			if (err == nil) != tc.ok {
				t.Errorf("error is %v", err)
			}
		})
	}
}
