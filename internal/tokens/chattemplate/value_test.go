package chattemplate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestDict compares a Dict with a slice of its keys and a map.
func TestDict(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var d Dict
		var keys []string
		values := map[string]int64{}
		for range rng.IntN(60) {
			key := fmt.Sprint(rng.IntN(40))
			v := rng.Int64N(100)
			if _, ok := values[key]; !ok {
				keys = append(keys, key)
			}
			values[key] = v
			d.Set(key, Int(v))
		}
		var got []string
		for i := range d.Len() {
			key, v := d.At(i)
			got = append(got, key.Text())
			if v.int() != values[key.Text()] {
				t.Fatalf("key %s: got %d, want %d", key.Text(), v.int(), values[key.Text()])
			}
		}
		if !slices.Equal(got, keys) {
			t.Fatalf("got the keys %v, want %v", got, keys)
		}
		for i := range 40 {
			v, ok := d.Get(fmt.Sprint(i))
			if want, has := values[fmt.Sprint(i)]; ok != has || v.int() != want {
				t.Fatalf("key %d: got %d, %v, want %d, %v", i, v.int(), ok, want, has)
			}
		}
	}
}

// plainJSON is v as encoding/json decodes it, with numbers as they print.
func plainJSON(v Value) any {
	switch v.Kind() {
	case KindNone:
		return nil
	case KindBool:
		return v.Truth()
	case KindString:
		return v.Text()
	case KindList:
		out := make([]any, len(v.Items()))
		for i, item := range v.Items() {
			out[i] = plainJSON(item)
		}
		return out
	case KindDict:
		out := map[string]any{}
		for i := range v.Dict().Len() {
			key, value := v.Dict().At(i)
			out[key.Text()] = plainJSON(value)
		}
		return out
	}
	return asFloat(v)
}

// checkJSON compares DecodeJSON with encoding/json.
func checkJSON(t *testing.T, data []byte) {
	t.Helper()
	var a Arena
	got, err := a.DecodeJSON(data)
	if errors.Is(err, ErrUnsupported) {
		return
	}
	valid := json.Valid(data) && utf8.Valid(data)
	if (err == nil) != valid {
		if valid && (strings.Contains(err.Error(), "too deep") || strings.Contains(err.Error(), "too many digits")) {
			return
		}
		t.Fatalf("%q: got %v, valid %v", data, err, valid)
	}
	if err != nil {
		return
	}
	var want any
	decoder := json.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&want); err != nil {
		return // a number that is infinite in Python
	}
	if !reflect.DeepEqual(plainJSON(got), want) {
		t.Fatalf("%q: got %v, want %v", data, plainJSON(got), want)
	}
}

var jsonSeeds = []string{
	`null`, `true`, ` false `, `0`, `-0`, `-1.5e3`, `1E400`, `123456789012345678901234567890`, `""`, `"a"`, `[]`, `{}`, `[1,[2,[3]]]`,
	`{"a":{"b":[null,true]},"a":1}`, `"\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00"`, `"\ud800"`, `"\udc00x"`, `"\ud800\ud800"`, `"é世🌍"`,
	`"` + strings.Repeat("x", 100) + `\n` + strings.Repeat("y", 100) + `"`, `"1234567\n"`, `"12345678\n90"`, `"\n\n\n\n\n\n\n\n"`, `["\n","\t","plain","\\"]`,
	`01`, `1.`, `.5`, `+1`, `1e`, `[1,]`, `{,}`, `{"a"}`, `{"a":}`, `{a:1}`, `"`, `"\`, `"\u00`, `"\x"`, "\"\n\"", "\"\x1f\"", `nul`, `[`, `{"a":1`, ``, ` `, `1 2`,
	"\xff", "\"\xff\"", `NaN`, `Infinity`, strings.Repeat("[", 200) + strings.Repeat("]", 200),
}

func TestDecodeJSON(t *testing.T) {
	for _, seed := range jsonSeeds {
		checkJSON(t, []byte(seed))
	}
}

func TestDecodeJSONKeepsOrderAndTypes(t *testing.T) {
	template, err := Parse(`{{ x }}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := render(template, []byte(`{"x": {"b": 1, "a": 1.0, "b": -0, "c": 1e400, "d": -0.0, "e": 12345678901234567890}}`))
	want := `{'b': 0, 'a': 1.0, 'c': inf, 'd': -0.0, 'e': 12345678901234567890}`
	if err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

// TestArena: values of several texts lie in one Arena without touching each other, and a reset Arena is as good as new.
func TestArena(t *testing.T) {
	var a Arena
	for round := range 5 {
		var values []Value
		var texts []string
		for i := range 200 {
			text := fmt.Sprintf(`{"round": %d, "text": "%s\n%d", "list": [%s1]}`, round, strings.Repeat("é", i*round), i, strings.Repeat("0, ", i))
			v, err := a.DecodeJSON([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			values, texts = append(values, v), append(texts, text)
		}
		for i, v := range values {
			var want any
			if err := json.Unmarshal([]byte(texts[i]), &want); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(plainJSON(v), want) {
				t.Fatalf("round %d, value %d: got %v, want %v", round, i, plainJSON(v), want)
			}
		}
		if a.Size() < 200*100 {
			t.Errorf("round %d: a size of only %d bytes", round, a.Size())
		}
		a.Reset()
		if a.Size() != 0 {
			t.Errorf("a size of %d bytes after Reset", a.Size())
		}
	}
}

func TestPlain(t *testing.T) {
	for i := range 20 {
		for c := range 256 {
			b := append(bytes.Repeat([]byte("a"), i), byte(c))
			b = append(b, "\"\x00\\"...)
			want := i
			if c >= ' ' && c != '"' && c != '\\' {
				want++
			}
			if got := plain(b); got != want {
				t.Fatalf("%q: got %d, want %d", b, got, want)
			}
		}
	}
}

// known knows one string.
type known struct {
	at, end int
	text    string
}

func (k known) TextAt(at int) (string, int, bool) { return k.text, k.end, at == k.at }

func TestDecodeKnown(t *testing.T) {
	var a Arena
	const data = `{"a": "first", "b": ["sec\nond", "third"]}`
	v, err := a.DecodeSpan(t.Context(), []byte(data), 0, len(data), known{at: 21, end: 31, text: "KNOWN"})
	if err != nil {
		t.Fatal(err)
	}
	if got := shortRepr(v); got != `{'a': 'first', 'b': ['KNOWN', 'third']}` {
		t.Errorf("got %s", got)
	}
}
