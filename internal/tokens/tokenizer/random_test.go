package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/test/race"
)

// randomModels makes small tokenizers of all kinds that there are, added tokens with all flags included.
type randomModels struct {
	*rand.Rand
	alphabet []string
}

func (r *randomModels) pick(list ...string) string { return list[r.IntN(len(list))] }

func (r *randomModels) text(n int) string {
	var b strings.Builder
	for range r.IntN(n + 1) {
		b.WriteString(r.pick(r.alphabet...))
	}
	return b.String()
}

// added are some added tokens, behind a vocabulary of size.
func (r *randomModels) added(size int) string {
	var list []map[string]any
	seen := map[string]bool{}
	for range r.IntN(5) {
		content := r.pick("<s>", "</s>", "<s>x", r.text(3), r.text(2), "\n", "\n\n", "ab", " a", "a ", "x<", "é", "カ・")
		if content == "" || seen[content] {
			continue
		}
		seen[content] = true
		flag := func(oneIn int) bool { return r.IntN(oneIn) == 0 }
		list = append(list, map[string]any{"content": content, "lstrip": flag(4), "rstrip": flag(4), "single_word": flag(8), "normalized": flag(4)})
	}
	for i := range list {
		list[i]["id"] = size + i
	}
	return marshal(list)
}

func marshal(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// merges are n random ones of tokens that are in the vocabulary, or are added to it by other merges.
func (r *randomModels) merges(vocab map[string]int, n int) (merges [][2]string) {
	tokens := slices.Sorted(maps.Keys(vocab))
	for range n {
		a, b := tokens[r.IntN(len(tokens))], tokens[r.IntN(len(tokens))]
		if len(a)+len(b) > 12 || strings.Contains(a+b, "<unk>") && r.IntN(3) > 0 {
			continue
		}
		if _, ok := vocab[a+b]; !ok {
			vocab[a+b] = len(vocab)
			tokens = append(tokens, a+b)
		}
		merges = append(merges, [2]string{a, b})
	}
	return merges
}

func (r *randomModels) marks(t *testing.T) []byte {
	vocab := map[string]int{"<unk>": 0}
	for _, s := range r.alphabet {
		for _, c := range s {
			if r.IntN(10) > 0 && c != ' ' {
				vocab[string(c)] = len(vocab)
			}
		}
	}
	vocab[spaceMark] = len(vocab)
	// Ids must be 0 to n, whatever was there before.
	for i, token := range slices.Sorted(maps.Keys(vocab)) {
		vocab[token] = i
	}
	merges := r.merges(vocab, 40)
	if r.IntN(3) > 0 {
		for b := range 256 {
			if token := fmt.Sprintf("<0x%02X>", b); r.IntN(3000) > 0 {
				vocab[token] = len(vocab)
			}
		}
	}
	replace := `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
	prepend := `{"type":"Prepend","prepend":"▁"}`
	normalizer, pre := "null", "null"
	switch r.IntN(6) {
	case 0:
		normalizer = `{"type":"Sequence","normalizers":[` + prepend + `,` + replace + `]}`
	case 1:
		normalizer, pre = replace, `{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false}`
	case 2:
		pre = `{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false}`
	case 3, 4:
		pre = fmt.Sprintf(`{"type":"Metaspace","replacement":"▁","prepend_scheme":%q,"split":%v}`, r.pick("first", "always", "never"), r.IntN(2) == 0)
	default:
		normalizer = r.pick(replace, prepend, `{"type":"NFC"}`, `null`)
	}
	return tiny(t, "vocab", marshal(vocab), "merges", marshal(merges), "added_tokens", r.added(len(vocab)), "normalizer", normalizer, "pre_tokenizer", pre,
		"byte_fallback", r.pick("true", "true", "false"), "fuse_unk", r.pick("true", "false"), "unk_token", r.pick(`"<unk>"`, `"<unk>"`, `null`))
}

func (r *randomModels) byteLevel(t *testing.T) []byte {
	vocab := map[string]int{}
	for b, c := range byteLevel.runes {
		vocab[string(c)] = b
	}
	var near []string // bytes of the alphabet, so that merges meet
	for _, s := range r.alphabet {
		for _, b := range []byte(s) {
			near = append(near, string(byteLevel.runes[b]))
		}
	}
	merges := [][2]string{}
	for range 60 {
		a, b := r.pick(near...), r.pick(near...)
		if _, ok := vocab[a+b]; !ok && len(a+b) < 16 {
			vocab[a+b] = len(vocab)
			merges = append(merges, [2]string{a, b})
			near = append(near, a+b)
		}
	}
	var steps []string
	patterns := slices.Sorted(maps.Keys(splitByRegex))
	for range r.IntN(3) {
		steps = append(steps, fmt.Sprintf(`{"type":"Split","pattern":{"Regex":%s},"behavior":"Isolated","invert":false}`, marshal(r.pick(patterns...))))
	}
	if r.IntN(4) == 0 {
		steps = append(steps, fmt.Sprintf(`{"type":"Digits","individual_digits":%v}`, r.IntN(2) == 0))
	}
	if r.IntN(6) == 0 {
		steps = append(steps, fmt.Sprintf(`{"type":"Split","pattern":{"Regex":%s},"behavior":"MergedWithNext","invert":false}`, marshal(patternLines)))
	}
	steps = append(steps, fmt.Sprintf(`{"type":"ByteLevel","add_prefix_space":false,"use_regex":%v}`, r.IntN(2) == 0))
	return tiny(t, "vocab", marshal(vocab), "merges", marshal(merges), "added_tokens", r.added(len(vocab)), "ignore_merges", r.pick("true", "false"),
		"normalizer", r.pick(`null`, `{"type":"NFC"}`, `{"type":"NFC"}`), "pre_tokenizer", `{"type":"Sequence","pretokenizers":[`+strings.Join(steps, ",")+`]}`)
}

// TestCutsOfRandomModels compares texts cut at all places that the cutter allows with uncut texts, and texts encoded as one
// word with the definition of merging.
func TestCutsOfRandomModels(t *testing.T) {
	r := &randomModels{Rand: rand.New(rand.NewPCG(77, 7))}
	r.alphabet = []string{"a", "b", "ab", "é", "A", "s", "x", " ", " ", "  ", "▁", ">", "<", "<s>", "</s>", "\n", "\r\n", "1", "12", "'", "'s", ".", "!", "/", "e\u0301", "\u0301", "\u0958", "\u093c", "\u00a0",
		"中", "文", "カ", "・", "゛", "⺀", "〇", "\u1100\u1161", "\u11a8", "\u212b", "🙂", "\x00", "\u11de0"}
	loaded, cuts := 0, 0
	rounds := 1500
	if race.Enabled { // there is one goroutine
		rounds = 150
	}
	for round := range rounds {
		file := r.marks(t)
		if round%2 == 0 {
			file = r.byteLevel(t)
		}
		m, err := LoadReader(bytes.NewReader(file), nil)
		if err != nil {
			continue
		}
		loaded++
		m.cuts.minToken, m.cuts.minInside = 1+r.IntN(2)*r.IntN(8), 1+r.IntN(2)*r.IntN(16)
		whole, parts := newEncoder(m), newEncoder(m)
		for range 60 {
			text := r.text(20)
			whole.out, parts.out = whole.out[:0], parts.out[:0]
			if m.spm != nil {
				whole.spmPiece(text)
				if want := slowMergeIDs(m, m.spm.symbols(&m.vocab, nil, text)); !slices.Equal(whole.out, want) {
					t.Fatalf("round %d: %q as one word\n got %v\nwant %v\n%s", round, text, whole.out, want, file)
				}
				whole.out = whole.out[:0]
			}
			whole.text(text)
			parts.parts(Space{}, text, nil)
			if !slices.Equal(parts.out, whole.out) {
				var pieces []string
				for from := 0; from < len(text); {
					end, _ := m.cuts.next(m, text, from)
					pieces = append(pieces, text[from:end])
					from = end
				}
				t.Fatalf("round %d: %q cut to %q\n got %v\nwant %v\n%s", round, text, pieces, parts.out, whole.out, file)
			}
			for from := 0; from < len(text); cuts++ {
				from, _ = m.cuts.next(m, text, from)
			}
		}
	}
	t.Logf("%d models, %d parts", loaded, cuts)
	if loaded < rounds*7/15 || cuts < rounds*1000/15 {
		t.Error("too little was compared")
	}
}
