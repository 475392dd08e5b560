package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash"
	"slices"
	"strings"
	"testing"
)

// canonicalOf is the text of a body; empty if it is not compared.
func canonicalOf(t testing.TB, route Route, body string) string {
	t.Helper()
	var r Request
	if err := ParseFor(route, []byte(body), "m", &r); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	text, _ := textOf(&r)
	return string(text)
}

// written is a hash that keeps what is written into it.
type written struct {
	hash.Hash
	text []byte
}

func (w *written) Write(p []byte) (int, error) {
	w.text = append(w.text, p...)
	return len(p), nil
}

// textOf is the text by which a request is compared; nil if it is not.
func textOf(r *Request) (text []byte, ok bool) {
	var w written
	if !r.WriteCanonical(&w) {
		return nil, false
	}
	return w.text, true
}

// TestLongTextsAreWrittenInOrder: a text that is longer than a piece is the same, however its strings fall on the ends of pieces.
func TestLongTextsAreWrittenInOrder(t *testing.T) {
	t.Parallel()
	for n := canonicalPiece - 64; n < canonicalPiece+8; n++ {
		for _, body := range []string{
			`{"model":"m","prompt":"` + strings.Repeat("x", n) + `","seed":1}`,
			`{"model":"m","prompt":[` + strings.Repeat("1,", n) + `2],"seed":1}`,
			`{"model":"m","prompt":["` + strings.Repeat(`a","`, n) + `2"],"seed":1}`,
		} {
			spaced := strings.Replace(body, `"model":"m","prompt":`, `"prompt" : `, 1)
			spaced = strings.Replace(spaced, `,"seed":1}`, `,"model":"m" , "seed" :1 }`, 1)
			if got := canonicalOf(t, Completions, spaced); got != body {
				t.Fatalf("%d: %.100q is %.100q", n, spaced, got)
			}
		}
	}
}

func TestBodiesThatAreTheSameRequest(t *testing.T) {
	t.Parallel()
	const want = `{"model":"m","prompt":"a  b\" c","seed":1,"stop":["x",{"y":null}]}`
	for _, body := range []string{
		want,
		"{ \"model\" : \"m\",\r\n\t\"prompt\":\"a  b\\\" c\", \"seed\":1 ,\"stop\":[ \"x\", {\"y\" : null} ] }\n",
		`{"stop":["x",{"y":null}],"seed":1,"prompt":"a  b\" c","model":"m"}`,
		`{"model":"m","user":"somebody","prompt":"a  b\" c","priority":-3,"seed":1,"stop":["x",{"y":null}]}`,
	} {
		if got := canonicalOf(t, Completions, body); got != want {
			t.Errorf("%s\nis %s\nwant %s", body, got, want)
		}
	}
}

// TestBodiesThatAreOtherRequests: each body differs from all others, or is not compared at all.
func TestBodiesThatAreOtherRequests(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, fields := range []string{
		``, `,"seed":1`, `,"seed":1.0`, `,"seed":1e0`, `,"seed":"1"`, `,"seed":null`, `,"seed":true`, `,"seed":-0`, `,"seed":0`,
		`,"seed":9007199254740993`, `,"seed":9007199254740992`, `,"seed":9007199254740992.0`,
		`,"stop":"a"`, `,"stop":"\u0061"`, `,"stop":"A"`, `,"stop":["a"]`, `,"stop":["a","b"]`, `,"stop":["b","a"]`, `,"stop":["a,b"]`,
		`,"stop":" a"`, `,"stop":"a "`, `,"stop":"\\"`, `,"stop":"\""`, `,"stop":"é"`, `,"stop":"e\u0301"`, `,"stop":"é"`,
		`,"x":{"a":1,"b":2}`, `,"x":{"b":2,"a":1}`, `,"x":{"a":1,"a":2}`, `,"x":{"a":2,"a":1}`, `,"x":{}`, `,"x":[]`, `,"x":[{}]`,
		`,"stream":true`, `,"stream":false`, `,"stream":true,"stream_options":{"include_usage":true}`, `,"cache_salt":"s"`,
		`,"User":"u"`, `,"metadata":{"user":"u"}`, `,"x":{"user":"u"}`,
	} {
		got := canonicalOf(t, Completions, `{"model":"m","prompt":"p"`+fields+`}`)
		if got == "" {
			t.Errorf("%s is not compared", fields)
		}
		if other, is := seen[got]; is && other != fields {
			t.Errorf("%s is the same as %s", fields, other)
		}
		seen[got] = fields
	}
	for _, body := range []string{
		`{"model":"m","prompt":"p","seed":1,"seed":2}`, `{"model":"m","prompt":"p","user":"a","user":"b"}`,
		`{"model":"m","prompt":"p","se\u0065d":1}`, `{"model":"m","prompt":"p","us\u0065r":"a"}`, "\ufeff" + `{"model":"m","prompt":"p"}`,
	} {
		if got := canonicalOf(t, Completions, body); got != "" {
			t.Errorf("%s is compared as %s", body, got)
		}
	}
	var many bytes.Buffer
	many.WriteString(`{"model":"m","prompt":"p"`)
	for i := range 300 {
		fmt.Fprintf(&many, `,"f%d":1`, i)
	}
	many.WriteByte('}')
	if got := canonicalOf(t, Completions, many.String()); got != "" {
		t.Error("a body with more fields than are kept is compared")
	}
}

// TestFieldsThatAnswersRepeatCount: answers of Responses repeat what other routes do not.
func TestFieldsThatAnswersRepeatCount(t *testing.T) {
	t.Parallel()
	for route, body := range map[Route]string{
		Completions:     `{"model":"m","prompt":"p","user":"u","metadata":{"a":"b"}}`,
		ChatCompletions: `{"messages":[{"role":"user","content":"p"}],"metadata":{"a":"b"},"model":"m","user":"u"}`,
		Responses:       `{"input":"p","metadata":{"a":"b"},"model":"m","user":"u"}`,
		Messages:        `{"max_tokens":1,"messages":[{"role":"user","content":"p"}],"metadata":{"a":"b"},"model":"m","user":"u"}`,
		Embeddings:      `{"input":"p","metadata":{"a":"b"},"model":"m","user":"u"}`,
	} {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(canonicalOf(t, route, body)), &fields); err != nil {
			t.Fatal(err)
		}
		_, user := fields["user"]
		_, metadata := fields["metadata"]
		wantUser, wantMetadata := route == Responses || route == Messages, route != Messages
		if user != wantUser || metadata != wantMetadata {
			t.Errorf("%s: user %v, metadata %v", route, user, metadata)
		}
	}
}

// meaning is what an engine's parser makes of a body, with numbers as they are written, without what is ignored.
func meaning(t *testing.T, route Route, body []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		t.Fatalf("the body was parsed: %v", err)
	}
	for name := range fields {
		if slices.Contains(ignored[route], name) {
			delete(fields, name)
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// FuzzCanonical: the text of a body means what the body means. So two bodies with the same text mean the same.
func FuzzCanonical(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","prompt":"p"}`, `{"model":"m","prompt":"p","seed":1,"seed":1.0}`, `{"model":"m","prompt":["a b","\u0061\\"],"x":{"a" : 1}}`,
		`{"model":"m","prompt":[1,2],"n":1e400}`, `{"model":"m","messages":[{"role":"user","content":" \" "}],"user":"u"}`,
		`{"model":"m","prompt":"\\\\\"","priority":1}`,
	} {
		f.Add([]byte(body), uint8(0))
		f.Add([]byte(body), uint8(1))
	}
	f.Fuzz(func(t *testing.T, body []byte, route uint8) {
		of := Route(int(route) % numRoutes)
		var r Request
		if ParseFor(of, body, "m", &r) != nil {
			return
		}
		text, ok := textOf(&r)
		if !ok {
			return
		}
		if got, want := meaning(t, of, text), meaning(t, of, body); got != want {
			t.Fatalf("%s means %s, but %s means %s", text, got, body, want)
		}
		var again Request
		if err := ParseFor(of, text, "m", &again); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if twice, ok := textOf(&again); !ok || !bytes.Equal(twice, text) {
			t.Fatalf("%s, of itself %s", text, twice)
		}
	})
}
