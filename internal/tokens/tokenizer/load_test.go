package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// tiny is a tokenizer.json with a token per byte and a few more, with fields replaced: name, JSON, name, JSON.
func tiny(t testing.TB, fields ...string) []byte {
	t.Helper()
	vocab := map[string]int{}
	for b, r := range byteLevel.runes {
		vocab[string(r)] = b
	}
	for i, s := range []string{"Ġa", "ab", "Ġab", "<｜odd｜>"} {
		vocab[s] = 256 + i
	}
	words, err := json.Marshal(vocab)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{
		"version": `"1.0"`, "truncation": `null`, "padding": `null`, "added_tokens": `[]`, "normalizer": `null`, "decoder": `null`, "post_processor": `null`,
		"pre_tokenizer": `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`,
		"vocab":         string(words), "merges": `["Ġ a", ["a", "b"], "Ġa b"]`, "type": `"BPE"`, "ignore_merges": `false`, "dropout": `null`,
	}
	for i := 0; i+1 < len(fields); i += 2 {
		all[fields[i]] = fields[i+1]
	}
	var top, model []string
	for name, value := range all {
		if value == "" {
			continue
		}
		field := fmt.Sprintf("%q: %s", name, value)
		switch name {
		case "vocab", "merges", "type", "ignore_merges", "dropout", "unk_token", "byte_fallback", "fuse_unk", "odd_option", "end_of_word_suffix":
			model = append(model, field)
		default:
			top = append(top, field)
		}
	}
	// In the order of a map: the loader must not care.
	return []byte("\n{" + strings.Join(append(top, `"model" : {`+strings.Join(model, " , ")+"}"), ",\n\t") + "} ")
}

const (
	bos = `{"id":260,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`
	eos = `{"id":261,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`
)

func TestLoad(t *testing.T) {
	both := `[` + bos + `,` + eos + `]`
	around := `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},` +
		`{"SpecialToken":{"id":"</s>","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[260],"tokens":["<s>"]},` +
		`"</s>":{"id":"</s>","ids":[261],"tokens":["</s>"]}}}`
	for name, tc := range map[string]struct {
		fields []string
		config string
		text   string
		want   []uint32 // with special tokens
		class  []uint32 // the same of the class, if that says otherwise
	}{
		"plain":                {text: " ab", want: []uint32{258}},
		"merges of one pair":   {fields: []string{"merges", `[["a","b"]]`}, text: " ab", want: []uint32{' ', 257}},
		"vocabulary first":     {fields: []string{"merges", `[]`, "ignore_merges", `true`}, text: " ab a", want: []uint32{258, 256}},
		"vocabulary not first": {fields: []string{"merges", `[]`}, text: " ab", want: []uint32{' ', 'a', 'b'}},
		"around the text":      {fields: []string{"added_tokens", both, "post_processor", around}, text: "ab<s>", want: []uint32{260, 257, 260, 261}},
		"in a sequence": {fields: []string{"added_tokens", both, "post_processor", `{"type":"Sequence","processors":[{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true},` + around + `]}`},
			text: "", want: []uint32{260, 261}},
		"escapes in the vocabulary": {fields: []string{"merges", `["\u0120 a"]`}, text: " a", want: []uint32{256}},
		"a Llama class adds its beginning": {fields: []string{"added_tokens", both}, text: "a", want: []uint32{'a'}, class: []uint32{260, 'a'},
			config: `{"tokenizer_class":"LlamaTokenizerFast","bos_token":{"content":"<s>"},"eos_token":"</s>"}`},
		"a Llama class adds what the file does": {fields: []string{"added_tokens", both, "post_processor", around}, text: "a", want: []uint32{260, 'a', 261},
			config: `{"tokenizer_class":"LlamaTokenizer","add_eos_token":true,"bos_token":"<s>","eos_token":"</s>"}`},
		"a Llama class adds its end": {fields: []string{"added_tokens", both, "post_processor", around}, text: "a", want: []uint32{260, 'a', 261}, class: []uint32{'a', 261},
			config: `{"tokenizer_class":"LlamaTokenizer","add_bos_token":false,"add_eos_token":true,"bos_token":null,"eos_token":"</s>"}`},
		"another class adds nothing": {fields: []string{"added_tokens", both}, text: "a", want: []uint32{'a'},
			config: `{"tokenizer_class":"PreTrainedTokenizerFast","add_bos_token":true,"bos_token":"<s>"}`},
		"the configuration sets flags": {fields: []string{"added_tokens", both}, text: "a <s> b", want: []uint32{'a', 260, ' ', 'b'},
			config: `{"added_tokens_decoder":{"260":{"content":"<s>","lstrip":true,"rstrip":false,"single_word":false,"normalized":false,"special":true}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := LoadReader(bytes.NewReader(tiny(t, tc.fields...)), strings.NewReader(tc.config))
			if err != nil {
				t.Fatal(err)
			}
			got, err := m.Encode(nil, tc.text, true)
			for i, id := range got { // bytes have their value as id
				if id < 256 && m.Decode([]uint32{id}) != string(rune(id)) && id < 128 {
					t.Errorf("id %d at %d is %q", id, i, m.Decode([]uint32{id}))
				}
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("ids are %v, %v, want %v", got, err, tc.want)
			}
			var class []uint32
			if other := m.OfClass(); other != nil {
				class, err = other.Encode(nil, tc.text, true)
			}
			if err != nil || !slices.Equal(class, tc.class) {
				t.Errorf("ids of the class are %v, %v, want %v", class, err, tc.class)
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		fields []string
		config string
		want   error
	}{
		"another model":                                    {fields: []string{"type", `"WordPiece"`}, want: ErrUnsupported},
		"a model without a type":                           {fields: []string{"type", ``}, want: ErrUnsupported},
		"a field that is not known":                        {fields: []string{"extra", `1`}, want: ErrUnsupported},
		"a model option that is not known":                 {fields: []string{"odd_option", `1`}, want: ErrUnsupported},
		"dropout":                                          {fields: []string{"dropout", `0.1`}, want: ErrUnsupported},
		"a suffix of words":                                {fields: []string{"end_of_word_suffix", `"</w>"`}, want: ErrUnsupported},
		"another normalizer":                               {fields: []string{"normalizer", `{"type":"NFKC"}`}, want: ErrUnsupported},
		"a normalizer that searches":                       {fields: []string{"normalizer", `{"type":"Replace","pattern":{"Regex":" +"},"content":"▁"}`}, want: ErrUnsupported},
		"a normalizer that replaces nothing":               {fields: []string{"normalizer", `{"type":"Replace","pattern":{"String":""},"content":"▁"}`}, want: ErrUnsupported},
		"another normalizer in a sequence":                 {fields: []string{"normalizer", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"}]}`}, want: ErrUnsupported},
		"a split without bytes":                            {fields: []string{"pre_tokenizer", `{"type":"Digits","individual_digits":true}`}, want: ErrUnsupported},
		"a split by another text":                          {fields: []string{"pre_tokenizer", `{"type":"Split","pattern":{"String":"x"},"behavior":"MergedWithPrevious","invert":false}`}, want: ErrUnsupported},
		"a split of what is left over":                     {fields: []string{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Removed","invert":true}`}, want: ErrUnsupported},
		"another mark":                                     {fields: []string{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":true}`}, want: ErrUnsupported},
		"another scheme of marks":                          {fields: []string{"pre_tokenizer", `{"type":"Metaspace","replacement":"▁","prepend_scheme":"last","split":true}`}, want: ErrUnsupported},
		"marks with contradicting prefixes":                {fields: []string{"pre_tokenizer", `{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","add_prefix_space":false}`}, want: ErrInvalid},
		"marks before the first piece, of something else":  {fields: []string{"pre_tokenizer", `{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}`, "normalizer", `{"type":"Prepend","prepend":"x"}`}, want: ErrUnsupported},
		"marks and bytes":                                  {fields: []string{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Metaspace","replacement":"▁"},{"type":"ByteLevel","add_prefix_space":false}]}`}, want: ErrUnsupported},
		"ignored merges without bytes":                     {fields: []string{"pre_tokenizer", `null`, "ignore_merges", `true`}, want: ErrUnsupported},
		"an unknown token that is none":                    {fields: []string{"pre_tokenizer", `null`, "unk_token", `"<unk>"`}, want: ErrInvalid},
		"another pre-tokenizer":                            {fields: []string{"pre_tokenizer", `{"type":"Whitespace"}`}, want: ErrUnsupported},
		"a space before the text":                          {fields: []string{"pre_tokenizer", `{"type":"ByteLevel","add_prefix_space":true}`}, want: ErrUnsupported},
		"a regular expression not known":                   {fields: []string{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"\\p{L}+"},"behavior":"Isolated","invert":false}`}, want: ErrUnsupported},
		"another behaviour":                                {fields: []string{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Removed","invert":false}`}, want: ErrUnsupported},
		"a split behind the bytes":                         {fields: []string{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false},{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated","invert":false}]}`}, want: ErrUnsupported},
		"another post-processor":                           {fields: []string{"post_processor", `{"type":"BertProcessing","sep":["x",1],"cls":["y",2]}`}, want: ErrUnsupported},
		"a post-processor without the text":                {fields: []string{"post_processor", `{"type":"TemplateProcessing","single":[],"pair":[],"special_tokens":{}}`}, want: ErrUnsupported},
		"a post-processor of unknown token":                {fields: []string{"post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{}}`}, want: ErrInvalid},
		"a byte without a token":                           {fields: []string{"vocab", `{"a":0}`, "merges", `[]`}, want: ErrUnsupported},
		"an id twice":                                      {fields: []string{"vocab", `{"a":0,"b":0}`}, want: ErrInvalid},
		"a huge id":                                        {fields: []string{"vocab", `{"a":99999999999999999999}`}, want: ErrInvalid},
		"a negative id":                                    {fields: []string{"vocab", `{"a":-1}`}, want: ErrInvalid},
		"a vocabulary that is a list":                      {fields: []string{"vocab", `[]`}, want: ErrInvalid},
		"merges that are an object":                        {fields: []string{"merges", `{}`}, want: ErrInvalid},
		"a merge of one":                                   {fields: []string{"merges", `["ab"]`}, want: ErrInvalid},
		"a merge of three":                                 {fields: []string{"merges", `[["a","b","c"]]`}, want: ErrInvalid},
		"a merge of numbers":                               {fields: []string{"merges", `[[1,2]]`}, want: ErrInvalid},
		"a merge not in the vocabulary":                    {fields: []string{"merges", `["x y"]`}, want: ErrInvalid},
		"a merge that is not byte-level":                   {fields: []string{"merges", `["世 界"]`}, want: ErrUnsupported},
		"an added token with another id":                   {fields: []string{"added_tokens", `[` + eos + `]`}, want: ErrUnsupported},
		"an added token of the vocabulary with another id": {fields: []string{"added_tokens", `[{"id":260,"content":"<｜odd｜>","normalized":false}]`}, want: ErrUnsupported},
		"an empty added token":                             {fields: []string{"added_tokens", `[{"id":260,"content":"","normalized":false}]`}, want: ErrUnsupported},
		"an added token with more flags":                   {fields: []string{"added_tokens", `[{"id":260,"content":"x","fuzzy":true}]`}, want: ErrUnsupported},
		"a configuration that is not JSON":                 {config: `{`, want: ErrInvalid},
		"a configuration that adds a token":                {config: `{"added_tokens_decoder":{"260":{"content":"<s>"}}}`, want: ErrUnsupported},
		"a configuration that renames a token":             {fields: []string{"added_tokens", `[` + bos + `]`}, config: `{"added_tokens_decoder":{"260":{"content":"x"}}}`, want: ErrUnsupported},
		"a Llama class without its beginning":              {config: `{"tokenizer_class":"LlamaTokenizerFast"}`, want: ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := LoadReader(bytes.NewReader(tiny(t, tc.fields...)), strings.NewReader(tc.config)); !errors.Is(err, tc.want) {
				t.Errorf("error is %v, want %v", err, tc.want)
			}
		})
	}
	for _, raw := range []string{"", "{", "[]", "null", "{}", `{"model":null}`, `{"model":{}}`, `{"model":[]}`} {
		if _, err := LoadReader(strings.NewReader(raw), nil); err == nil {
			t.Errorf("%q was loaded", raw)
		}
	}
}

func TestLoadOfADirectory(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty directory: error is %v", err)
	}
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tokenizer.json", tiny(t, "added_tokens", `[`+bos+`]`))
	m, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := m.Encode(nil, "a", true); err != nil || len(ids) != 1 {
		t.Errorf("ids are %v, %v", ids, err)
	}
	write("tokenizer_config.json", []byte(`{"tokenizer_class":"LlamaTokenizerFast","bos_token":"<s>"}`))
	if m, err = Load(dir); err != nil {
		t.Fatal(err)
	}
	if ids, err := m.Encode(nil, "a", true); err != nil || len(ids) != 1 || m.OfClass() == nil {
		t.Errorf("with a configuration: ids are %v, %v", ids, err)
	}
	if ids, err := m.OfClass().Encode(nil, "a", true); err != nil || len(ids) != 2 {
		t.Errorf("of the class: ids are %v, %v", ids, err)
	}
}

// TestConfigurations loads the models with their own configurations, with which they encode as without.
func TestConfigurations(t *testing.T) {
	dirs := []string{gpt2, qwen}
	if *goldens != "" {
		more, err := filepath.Glob(filepath.Join(*goldens, "*"))
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, more...)
	}
	for _, dir := range dirs {
		config, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
		if err != nil {
			continue // no model
		}
		m, err := LoadReader(bytes.NewReader(unzip(t, filepath.Join(dir, "tokenizer.json.gz"))), bytes.NewReader(config))
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("%s: %d ids, %v and %v around a text", dir, m.Size(), m.prefix, m.suffix)
		for _, g := range readGoldens(t, filepath.Join(dir, "golden.jsonl.gz")) {
			if ids, err := m.Encode(nil, g.Text, true); err != nil || !slices.Equal(ids, g.IDsSpecial) {
				t.Fatalf("%.200q: %v\n got %v\nwant %v", g.Text, err, head(ids), head(g.IDsSpecial))
			}
			if other := m.OfClass(); other != nil {
				want := slices.Concat(other.prefix, g.IDs, other.suffix)
				if ids, err := other.Encode(nil, g.Text, true); err != nil || !slices.Equal(ids, want) {
					t.Fatalf("of the class: %.200q: %v\n got %v\nwant %v", g.Text, err, head(ids), head(want))
				}
			}
		}
		if other := m.OfClass(); other != nil {
			t.Logf("%s: the class puts %v and %v around a text", dir, other.prefix, other.suffix)
		}
	}
}

// TestLicences: files of others lie beside their licences.
func TestLicences(t *testing.T) {
	for _, dir := range []string{gpt2, qwen} {
		if text, err := os.ReadFile(filepath.Join(dir, "LICENSE")); err != nil || len(text) < 1000 {
			t.Errorf("%s: a licence of %d bytes, %v", dir, len(text), err)
		}
	}
}

// checkLoad loads a possible model, and uses it if it is one.
func checkLoad(t *testing.T, file, config []byte, text string) {
	t.Helper()
	m, err := LoadReader(bytes.NewReader(file), bytes.NewReader(config))
	if err != nil {
		if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) {
			t.Fatalf("error is %v", err)
		}
		return
	}
	ids, err := m.Encode(nil, text, true)
	if err != nil && !errors.Is(err, ErrText) {
		t.Fatal(err)
	}
	// Through a cache and cut wherever possible it is the same.
	m.cuts.minToken, m.cuts.minInside = 1, 1
	space := NewCache(1 << 18).Space("")
	for range 2 {
		got, cachedErr := m.EncodeCached(t.Context(), space, nil, text, true)
		if !slices.Equal(got, ids) || (cachedErr == nil) != (err == nil) {
			t.Fatalf("%q by parts: %v, %v, want %v, %v", text, got, cachedErr, ids, err)
		}
	}
	m.Decode(ids)
	for _, id := range ids {
		if int(id) >= m.Size() && !slices.Contains(m.prefix, id) && !slices.Contains(m.suffix, id) {
			t.Fatalf("id %d of %d", id, m.Size())
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"\u0120":1,"\\\"":2, "\ud83d\ude00":3},"merges":[["a","b"]]}}`), []byte(`{"added_tokens_decoder":{"1":{}}}`), "")
	f.Add([]byte(`{"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]},"added_tokens":[{"id":1,"content":"x"}]}`), []byte(nil), "x")
	f.Fuzz(checkLoad)
}

func FuzzLoadFields(f *testing.F) {
	f.Add(`["Ġ a","a b"]`, `[`+bos+`]`, `{"type":"NFC"}`, `{"type":"ByteLevel","add_prefix_space":false}`, `null`, `{"tokenizer_class":"LlamaTokenizer","bos_token":"<s>"}`, "é<s> ab")
	f.Add(`[["a","b"]]`, `[]`, `{"type":"Sequence","normalizers":[]}`, `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated"},{"type":"ByteLevel"}]}`,
		`{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"x"}}],"special_tokens":{"x":{"ids":[5]}}}`, ``, "12345 ab")
	f.Fuzz(func(t *testing.T, merges, added, normalizer, pre, post, config, text string) {
		checkLoad(t, tiny(t, "merges", merges, "added_tokens", added, "normalizer", normalizer, "pre_tokenizer", pre, "post_processor", post), []byte(config), text)
	})
}

// FuzzLoadMarks loads vocabularies in the style of sentencepiece, in which text is what it says.
func FuzzLoadMarks(f *testing.F) {
	replace := `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
	prepend := `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},` + replace + `]}`
	space := `{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false}`
	mark := `{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true}`
	f.Add("ab ▁ab ba é", prepend, `null`, "", true, true, " ab éba b<s>ab▁")
	f.Add("ab", replace, space, "lrnx", false, true, "a [A]  b")
	f.Add("ab >▁ \n\n", `null`, mark, "sl", true, false, "\n\nab [A]>▁a")
	f.Fuzz(func(t *testing.T, words, normalizer, pre, flags string, bytes, fuse bool, text string) {
		if !utf8.ValidString(words) || !utf8.ValidString(flags) {
			return
		}
		// The vocabulary has the characters of the words, the words, and merges from their beginnings on.
		vocab := map[string]int{"<unk>": 0}
		put := func(s string) {
			if _, ok := vocab[s]; !ok {
				vocab[s] = len(vocab)
			}
		}
		merges := [][2]string{}
		if bytes {
			for b := range 256 {
				if b != len(flags)%7*40 { // sometimes one is not there
					put(fmt.Sprintf("<0x%02X>", b))
				}
			}
		}
		for w := range strings.FieldsSeq(words) {
			last := ""
			for _, r := range w {
				if put(string(r)); last != "" {
					merges = append(merges, [2]string{last, string(r)})
				}
				last += string(r)
				put(last)
			}
		}
		added := []map[string]any{{"id": len(vocab), "content": "<s>"}, {"id": len(vocab) + 1, "content": "[A]", "lstrip": strings.Contains(flags, "l"),
			"rstrip": strings.Contains(flags, "r"), "single_word": strings.Contains(flags, "s"), "normalized": strings.Contains(flags, "n")}}
		if strings.Contains(words, "<s>") || strings.Contains(words, "[A]") {
			added = nil
		}
		unk := `"<unk>"`
		if strings.Contains(flags, "x") {
			unk = `null`
		}
		checkLoad(t, tiny(t, "vocab", marshal(vocab), "merges", marshal(merges), "added_tokens", marshal(added), "normalizer", normalizer, "pre_tokenizer", pre,
			"byte_fallback", fmt.Sprint(bytes), "fuse_unk", fmt.Sprint(fuse), "unk_token", unk), nil, text)
	})
}

// TestLoadTakesLittleMemory bounds all that is allocated, whether the collector has been there or not.
func TestLoadTakesLittleMemory(t *testing.T) {
	file := unzip(t, qwen+"/tokenizer.json.gz")
	loadClasses()
	var before, behind runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := LoadReader(bytes.NewReader(file), nil); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&behind)
	if got := behind.TotalAlloc - before.TotalAlloc; got > 4*uint64(len(file)) {
		t.Errorf("%d bytes for a file of %d", got, len(file))
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, strings.Repeat(" ", 1<<16)), nil }

func TestLoadOfTooMuch(t *testing.T) {
	if _, err := read(strings.NewReader("x"), MaxFile+1); !errors.Is(err, ErrInvalid) {
		t.Errorf("error is %v", err)
	}
	if _, err := read(endless{}, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("error is %v", err)
	}
}

// behaviour is what the reference library does, by code point.
type behaviour struct {
	NFC [][2]any
	L   [][2]rune
	WS  [][2]rune
}

func readBehaviour(t *testing.T) (b behaviour) {
	t.Helper()
	if err := json.Unmarshal(unzip(t, "../../../hack/unicodegen/testdata/unicode-behaviour.json.gz"), &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNFCOfEveryCodePoint(t *testing.T) {
	changed := map[rune]string{}
	for _, p := range readBehaviour(t).NFC {
		changed[rune(p[0].(float64))] = p[1].(string)
	}
	if len(changed) < 1000 {
		t.Fatalf("%d code points change", len(changed))
	}
	for r := range rune(utf8.MaxRune + 1) {
		if !utf8.ValidRune(r) {
			continue
		}
		want, ok := changed[r]
		if !ok {
			want = string(r)
		}
		if got := new(encoder).nfc(string(r)); got != want {
			t.Errorf("U+%04X becomes %+q, want %+q", r, got, want)
		}
		if got := new(encoder).nfc("a" + string(r) + "z"); got != "a"+want+"z" && nfcTable().combining[r] == 0 && nfcTable().compose[[2]rune{'a', r}] == 0 {
			t.Errorf("between letters U+%04X becomes %+q", r, got)
		}
	}
}

func TestNFC(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"two marks, sorted":                     {"a\u0301\u0323", "\u1ea1\u0301"},
		"marks of one class keep their order":   {"a\u0301\u0300", "\u00e1\u0300"},
		"a mark behind a blocked one":           {"a\u0315\u0300\u05ae\u0300b", "\u00e0\u05ae\u0300\u0315b"},
		"more than 30 marks":                    {"a" + strings.Repeat("\u0301", 40), "\u00e1" + strings.Repeat("\u0301", 39)},
		"syllables of jamo":                     {"\u1100\u1161\u11a8x\u1112\u1175", "\uac01x\ud788"},
		"a syllable and a final":                {"\uac00\u11a8", "\uac01"},
		"a final alone":                         {"\u11a8", "\u11a8"},
		"starters that compose":                 {"\U00011099\U000110ba", "\U0001109a"},
		"a composition of a later Unicode":      {"\U00011935\U00011930", "\U00011935\U00011930"},
		"a character that must not be composed": {"\u0958", "\u0915\u093c"},
		"a mark at the start":                   {"\u0301a\u0301", "\u0301\u00e1"},
		"nothing to do":                         {"日本語 ÄÖÜ é", "日本語 ÄÖÜ é"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := new(encoder).nfc(tc.in); got != tc.want {
				t.Errorf("%+q becomes %+q, want %+q", tc.in, got, tc.want)
			}
		})
	}
}

// TestNFCByParts compares the walk from one quiet rune to the next with the definition over the entire text.
func TestNFCByParts(t *testing.T) {
	runes := []rune("aeoz é\u0301\u0323\u0300\u0345\u0315\u05aeが\u304b\u3099\u1100\u1161\u11a8\uac00각\u0958日\u212b\u0f73\u0344\U0001d15e\u1e9b")
	rng := rand.New(rand.NewPCG(4, 4))
	for range 20_000 {
		var s []rune
		for range rng.IntN(9) {
			s = append(s, runes[rng.IntN(len(runes))])
		}
		var want []rune
		for _, c := range nfcTable().normalize(nil, string(s)) {
			want = append(want, c.r)
		}
		got := new(encoder).nfc(string(s))
		if got != string(want) {
			t.Fatalf("%+q becomes %+q, want %+q", string(s), got, string(want))
		}
		if again := new(encoder).nfc(got); again != got {
			t.Fatalf("%+q becomes %+q, and that %+q", string(s), got, again)
		}
	}
}

func TestClasses(t *testing.T) {
	loadClasses()
	b := readBehaviour(t)
	for name, tc := range map[string]struct {
		ranges [][2]rune
		class  uint16
	}{"letters": {b.L, classL}, "white space": {b.WS, classS}} {
		t.Run(name, func(t *testing.T) {
			want := map[rune]bool{}
			for _, r := range tc.ranges {
				for c := r[0]; c <= r[1]; c++ {
					want[c] = true
				}
			}
			for r := range rune(utf8.MaxRune + 1) {
				if got := classPages[r>>8][r&255]&tc.class != 0; got != want[r] {
					t.Fatalf("U+%04X: %v", r, got)
				}
			}
		})
	}
}
