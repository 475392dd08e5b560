package tokenizer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/test/race"
)

var goldens = flag.String("goldens", "", "a directory with more models to compare: MODEL/tokenizer.json.gz, golden.jsonl.gz, fuzz.jsonl.gz")

// unzip reads a complete compressed file.
func unzip(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var loaded sync.Map // by directory

// model is the Tokenizer of a directory with a compressed tokenizer.json, without its configuration.
func model(t testing.TB, dir string) *Tokenizer {
	t.Helper()
	if m, ok := loaded.Load(dir); ok {
		return m.(*Tokenizer)
	}
	m, err := LoadReader(bytes.NewReader(unzip(t, filepath.Join(dir, "tokenizer.json.gz"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	loaded.Store(dir, m)
	return m
}

// golden is one case of the reference library: ids without and with what stands around a text.
type golden struct {
	Cat        string   `json:"cat"`
	Text       string   `json:"text"`
	IDs        []uint32 `json:"ids"`
	IDsSpecial []uint32 `json:"ids_sp"`
}

func readGoldens(t testing.TB, path string) (cases []golden) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(unzip(t, path)))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var g golden
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, g)
	}
	return cases
}

// modelDirs are the directories with a model and its goldens.
func modelDirs(t testing.TB) (dirs []string) {
	t.Helper()
	patterns := []string{"testdata/*/tokenizer.json.gz"}
	if *goldens != "" {
		patterns = append(patterns, filepath.Join(*goldens, "*/tokenizer.json.gz"))
	}
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("no models in %s: %v", pattern, err)
		}
		for _, path := range paths {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	return dirs
}

func TestGoldens(t *testing.T) {
	for _, dir := range modelDirs(t) {
		for _, name := range []string{"golden", "fuzz"} {
			t.Run(dir+"/"+name, func(t *testing.T) {
				m := model(t, dir)
				cases := readGoldens(t, filepath.Join(dir, name+".jsonl.gz"))
				wrong, special := 0, 0
				var ids []uint32
				for _, g := range cases {
					var err error
					if ids, err = m.Encode(ids[:0], g.Text, false); err != nil || !slices.Equal(ids, g.IDs) {
						wrong++
						if wrong < 4 {
							t.Errorf("%s %.200q: %v\n got %v\nwant %v", g.Cat, g.Text, err, head(ids), head(g.IDs))
						}
					}
					if name == "fuzz" {
						continue
					}
					if ids, err = m.Encode(ids[:0], g.Text, true); err != nil || !slices.Equal(ids, g.IDsSpecial) {
						special++
						if special < 4 {
							t.Errorf("with special tokens, %s %.200q: %v\n got %v\nwant %v", g.Cat, g.Text, err, head(ids), head(g.IDsSpecial))
						}
					}
				}
				t.Logf("%s: %d of %d exact; with special tokens all but %d", filepath.Base(dir)+"/"+name, len(cases)-wrong, len(cases), special)
				if len(cases) < 100 {
					t.Errorf("only %d cases", len(cases))
				}
			})
		}
	}
}

// withFields is a tokenizer.json with some of its fields replaced. Those of its model are replaced one by one, tokens
// are added to the vocabulary or, with null, taken out, and then merges of what is no longer there; merges are added.
func withFields(t testing.TB, file []byte, fields map[string]json.RawMessage) []byte {
	t.Helper()
	read := func(raw []byte, into any) {
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	write := func(value any) []byte {
		raw, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	var all map[string]json.RawMessage
	read(file, &all)
	changes := map[string]json.RawMessage{}
	for _, name := range []string{"model", "vocab", "merges"} {
		if raw, ok := fields[name]; ok {
			changes[name] = raw
			delete(fields, name)
		}
	}
	maps.Copy(all, fields)
	if len(changes) == 0 {
		return write(all)
	}
	var model map[string]json.RawMessage
	read(all["model"], &model)
	if raw, ok := changes["model"]; ok {
		read(raw, &model)
	}
	if raw, ok := changes["vocab"]; ok {
		var vocab map[string]*uint32
		read(model["vocab"], &vocab)
		read(raw, &vocab)
		maps.DeleteFunc(vocab, func(_ string, id *uint32) bool { return id == nil })
		model["vocab"] = write(vocab)
		var merges, more [][2]string
		read(model["merges"], &merges)
		merges = slices.DeleteFunc(merges, func(m [2]string) bool {
			return vocab[m[0]] == nil || vocab[m[1]] == nil || vocab[m[0]+m[1]] == nil
		})
		if raw, ok := changes["merges"]; ok {
			read(raw, &more)
		}
		model["merges"] = write(append(merges, more...))
	}
	all["model"] = write(model)
	return write(all)
}

// TestVariants covers what the models at hand do not use: other models' splitting rules, and all flags of added tokens.
func TestVariants(t *testing.T) {
	for path, base := range map[string]string{"variants": gpt2, "splits": gpt2, "spm": spmSmall} {
		t.Run(path, func(t *testing.T) { testVariants(t, "testdata/"+path+".jsonl.gz", base+"/tokenizer.json.gz") })
	}
}

// testVariants compares the cases of a file: lines that replace fields of the tokenizer.json base, cases behind each.
func testVariants(t *testing.T, path, base string) {
	file := unzip(t, base)
	type line struct {
		Variant string
		golden
	}
	var m *Tokenizer
	variant, variants, cases, wrong := "", 0, 0, 0
	var texts []golden // of the variant
	cached := func() {
		if m == nil {
			return
		}
		if race.Enabled && variants%10 != 1 { // there is one goroutine
			texts = texts[:0]
			return
		}
		t.Run(variant, func(t *testing.T) {
			testWorst(t, m, worst[:fewWorst])
			everyCut(t, m)
			testCached(t, m, texts)
		})
		texts = texts[:0]
	}
	defer func() { cached() }()
	for raw := range bytes.Lines(unzip(t, path)) {
		var l line
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatal(err)
		}
		if l.Variant == "" {
			cases++
			texts = append(texts, l.golden)
			if ids, err := m.Encode(nil, l.Text, false); err != nil || !slices.Equal(ids, l.IDs) {
				if wrong++; wrong < 10 {
					t.Errorf("%s: %q: %v\n got %v\nwant %v", variant, l.Text, err, ids, l.IDs)
				}
			}
			continue
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err != nil {
			t.Fatal(err)
		}
		delete(fields, "variant")
		cached()
		variant = l.Variant
		variants++
		var err error
		if m, err = LoadReader(bytes.NewReader(withFields(t, file, fields)), nil); err != nil {
			t.Fatalf("%s: %v", variant, err)
		}
	}
	t.Logf("%d of %d exact, %d variants", cases-wrong, cases, variants)
	if variants < 8 || cases < 100*variants {
		t.Errorf("%d variants, %d cases", variants, cases)
	}
}
