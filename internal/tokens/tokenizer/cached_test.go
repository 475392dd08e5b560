package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/test/race"
)

// everyCut makes m cut wherever it can, until the test ends.
func everyCut(t testing.TB, m *Tokenizer) {
	t.Helper()
	token, inside := m.cuts.minToken, m.cuts.minInside
	t.Cleanup(func() { m.cuts.minToken, m.cuts.minInside = token, inside })
	m.cuts.minToken, m.cuts.minInside = 1, 1
}

// head is the beginning of ids, to be printed.
func head(ids []uint32) []uint32 { return ids[:min(len(ids), 40)] }

// testCached compares encoding part by part, through a cache and without, with the goldens, and counts the cuts.
func testCached(t *testing.T, m *Tokenizer, cases []golden) {
	t.Helper()
	ctx := context.Background()
	space := NewCache(64 << 20).Space("")
	cuts, wrong := 0, 0
	for range 2 {
		for _, g := range cases {
			e := newEncoder(m)
			e.parts(Space{}, g.Text, nil)
			ids, err := m.EncodeCached(ctx, space, nil, g.Text, false)
			if e.err != nil || err != nil || !slices.Equal(e.out, g.IDs) || !slices.Equal(ids, g.IDs) {
				if wrong++; wrong < 4 {
					t.Errorf("%.300q: %v, %v\n   by parts %v\nfrom cache %v\n      want %v", g.Text, e.err, err, head(e.out), head(ids), head(g.IDs))
				}
			}
			for from := 0; from < len(g.Text); cuts++ {
				from, _ = m.cuts.next(m, g.Text, from)
			}
			cuts--
			if len(g.IDsSpecial) < len(g.IDs) { // not recorded
				continue
			}
			if ids, err = m.EncodeCached(ctx, space, nil, g.Text, true); err != nil || !slices.Equal(ids, g.IDsSpecial) {
				if wrong++; wrong < 4 {
					t.Errorf("with special tokens, %.200q: %v\n got %v\nwant %v", g.Text, err, head(ids), head(g.IDsSpecial))
				}
			}
		}
	}
	t.Logf("%d texts, %d cuts, %d wrong", len(cases), cuts/2, wrong)
}

// fromCache is how many cases of a file in the repository are compared from the cache, and again with every cut. The race detector, which
// has one goroutine to look at there, sees fewer.
func fromCache() int {
	if race.Enabled {
		return 30
	}
	return 300
}

func TestCachedGoldens(t *testing.T) {
	for _, dir := range modelDirs(t) {
		for _, name := range []string{"golden", "fuzz"} {
			t.Run(dir+"/"+name, func(t *testing.T) {
				m := model(t, dir)
				cases := readGoldens(t, dir+"/"+name+".jsonl.gz")
				if strings.HasPrefix(dir, "testdata/") {
					cases = sample(cases, fromCache())
				}
				testCached(t, m, cases)
				everyCut(t, m)
				testCached(t, m, cases)
			})
		}
	}
}

// sample is about n of the cases, from all over them.
func sample(cases []golden, n int) (some []golden) {
	step := max(1, len(cases)/n)
	for i := 0; i < len(cases); i += step {
		some = append(some, cases[i])
	}
	return some
}

// conversation is a chat in the form of Qwen's template, with n turns, about bytes long each.
func conversation(n, bytes int, seed uint64) string {
	var b strings.Builder
	b.WriteString("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n")
	for i := range n {
		fmt.Fprintf(&b, "<|im_start|>%s\n%s<|im_end|>\n", []string{"user", "assistant"}[i%2], mixed(bytes, seed+uint64(i)))
	}
	b.WriteString("<|im_start|>assistant\n")
	return b.String()
}

func TestKeysAreThoseOfTheIDs(t *testing.T) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(8, 1))
	for _, dir := range []string{qwen, spmSmall} {
		m := model(t, dir)
		cache := NewCache(4 << 20)
		everyCut(t, m)
		m.cuts.minToken, m.cuts.minInside = 20, 70
		for round := range 400 {
			// Few texts, cut anywhere, so that parts repeat behind others.
			text := conversation(1+rng.IntN(6), 300, uint64(rng.IntN(2)))
			text = strings.ToValidUTF8(text[rng.IntN(2)*rng.IntN(40):len(text)-rng.IntN(len(text)/2+1)], "")
			special := rng.IntN(2) == 0
			salt := []string{"", "a", "b"}[rng.IntN(3)]
			chain := Chain{Root: kvblock.Key(1 + rng.IntN(3)), BlockTokens: []int{1, 2, 16, 16, 16, 64, 1000}[rng.IntN(7)]}
			ids, err := m.Encode(nil, text, special)
			if err != nil {
				t.Fatal(err)
			}
			want := kvblock.AppendKeys([]kvblock.Key{7}, chain.Root, ids, chain.BlockTokens)
			for _, space := range []Space{cache.Space(salt), {}} {
				got, tokens, err := m.AppendKeys(ctx, space, []kvblock.Key{7}, text, special, chain)
				if err != nil || tokens != len(ids) || !slices.Equal(got, want) {
					t.Fatalf("round %d, %+v: %d tokens of %d, %v\n got %x\nwant %x", round, chain, tokens, len(ids), err, got, want)
				}
			}
		}
		if s := cache.Stats(); s.Hits < s.Misses {
			t.Errorf("%+v", s)
		}
	}
}

func TestCachedTextThatIsRefused(t *testing.T) {
	ctx := context.Background()
	m := model(t, gpt2)
	everyCut(t, m)
	space := NewCache(1 << 20).Space("")
	for name, text := range map[string]string{
		"not UTF-8":        "some words before a\xffb and behind",
		"half a character": "some words \xe6\x97",
		"at a cut":         "some\xe6<|endoftext|>",
		"a long word":      "x " + strings.Repeat("a", MaxWord+1),
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				if ids, err := m.EncodeCached(ctx, space, []uint32{5}, text, true); !errors.Is(err, ErrText) || len(ids) != 1 {
					t.Errorf("%d ids, error %v", len(ids), err)
				}
				keys, _, err := m.AppendKeys(ctx, space, []kvblock.Key{5}, text, true, Chain{Root: 1, BlockTokens: 1})
				if !errors.Is(err, ErrText) || len(keys) != 1 {
					t.Errorf("%d keys, error %v", len(keys), err)
				}
			}
			if _, _, err := m.AppendKeys(ctx, space, nil, "fine", false, Chain{}); err == nil {
				t.Error("blocks of no tokens were made")
			}
		})
	}
}

func TestCachedEncodingStopsWithItsContext(t *testing.T) {
	m := model(t, gpt2)
	text := mixed(6*checkBytes, 5)
	ctx := &countdown{Context: context.Background(), n: 3}
	if ids, err := m.EncodeCached(ctx, NewCache(1<<24).Space(""), nil, text, false); !errors.Is(err, context.DeadlineExceeded) || len(ids) != 0 {
		t.Errorf("%d ids, error %v", len(ids), err)
	}
	if ctx.n != -1 {
		t.Errorf("the context was asked %d times after its end", -1-ctx.n)
	}
}

func TestWhatIsKnownCostsNoAllocation(t *testing.T) {
	if race.Enabled {
		t.Skip("pools forget under the race detector")
	}
	ctx := context.Background()
	m := model(t, qwen)
	space := NewCache(16 << 20).Space("salt")
	text := conversation(24, 1300, 1)
	chain := Chain{Root: 1, BlockTokens: 16}
	keys, tokens, err := m.AppendKeys(ctx, space, nil, text, false, chain)
	if err != nil || tokens < 5000 {
		t.Fatalf("%d tokens, %v", tokens, err)
	}
	ids, err := m.EncodeCached(ctx, space, nil, text, false)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(50, func() { keys, _, _ = m.AppendKeys(ctx, space, keys[:0], text, false, chain) }); n != 0 {
		t.Errorf("%v allocations for the keys", n)
	}
	if n := testing.AllocsPerRun(50, func() { ids, _ = m.EncodeCached(ctx, space, ids[:0], text, false) }); n != 0 {
		t.Errorf("%v allocations for the ids", n)
	}
}

func TestANewTurnIsAllThatIsNew(t *testing.T) {
	ctx := context.Background()
	m := model(t, qwen)
	cache := NewCache(16 << 20)
	var ids []uint32
	before := cache.Stats()
	for turns := 1; turns <= 24; turns++ {
		text := conversation(turns, 1300, 1)
		var err error
		if ids, err = m.EncodeCached(ctx, cache.Space(""), ids[:0], text, false); err != nil {
			t.Fatal(err)
		}
		s := cache.Stats()
		// The last part of the text before has grown, and so is encoded again.
		if missed := s.MissBytes - before.MissBytes; missed > 2*1300+2*minInsidePart {
			t.Errorf("turn %d: %d bytes missed", turns, missed)
		}
		before = s
	}
}

func TestCacheForManyGoroutines(t *testing.T) {
	ctx := context.Background()
	m := model(t, qwen)
	const limit = 600 << 10 // too small for all of it
	cache := NewCache(limit)
	chain := Chain{Root: 3, BlockTokens: 16}
	texts := make([]string, 12)
	want := make([][]kvblock.Key, len(texts))
	for i := range texts {
		texts[i] = conversation(20+i, 900, uint64(i*100))
		ids, err := m.Encode(nil, texts[i], false)
		if err != nil {
			t.Fatal(err)
		}
		want[i] = kvblock.AppendKeys(nil, chain.Root, ids, chain.BlockTokens)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			var keys []kvblock.Key
			for i := range 60 {
				k := (i*7 + g) % len(texts)
				var err error
				if keys, _, err = m.AppendKeys(ctx, cache.Space(""), keys[:0], texts[k], false, chain); err != nil || !slices.Equal(keys, want[k]) {
					t.Errorf("text %d differs: %v", k, err)
				}
			}
		})
	}
	wg.Wait()
	if s := cache.Stats(); s.Bytes > limit || s.Evicted == 0 || s.Hits == 0 {
		t.Errorf("%+v", s)
	}
}

func FuzzCached(f *testing.F) {
	f.Add("Hello, <|endoftext|> world! It's 12 o'clock.\n\n  Straße カ・タ 漢⺀ e\u0301", "▁the<s> >▁a\n\nb")
	f.Add("<|im_start|>user\n<|im_end|>", " \t<0x0A>\u00a0")
	f.Add("\u0958\\n \u212b, \u2126 \uac00\u11a8", "\u093c\\n a\u0301\\n") // NFC makes a letter and a mark of the first
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, dir := range []string{gpt2, qwen, spmSmall} {
			m := model(t, dir)
			everyCut(t, m)
			space := NewCache(1 << 20).Space("")
			for _, text := range []string{a, b, a + b, a, b + a} {
				want, wantErr := m.Encode(nil, text, true)
				got, err := m.EncodeCached(context.Background(), space, nil, text, true)
				if !errors.Is(err, wantErr) || !slices.Equal(got, want) {
					t.Fatalf("%s: %q: %v, %v\n got %v\nwant %v", dir, text, err, wantErr, got, want)
				}
			}
		}
	})
}
