package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func depthOf(body []byte) int {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	depth, deepest := 0, 0
	for {
		tok, err := dec.Token()
		if err != nil {
			return deepest
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

// checkParse compares Parse with slowParse.
func checkParse(t *testing.T, route Route, body []byte, r *Request) {
	t.Helper()
	before := bytes.Clone(body)
	err := Parse(route, body, r)
	if !bytes.Equal(before, body) {
		t.Fatalf("the body was changed: %q", before)
	}
	want, bad := slowParse(route, body)
	got := ""
	var syntax *SyntaxError
	var field *FieldError
	switch {
	case errors.As(err, &syntax):
		got = "syntax"
		if syntax.Offset < 0 || syntax.Offset > len(body) {
			t.Fatalf("offset %d of a body of %d bytes", syntax.Offset, len(body))
		}
	case errors.As(err, &field):
		got = field.Field
		if got == "" {
			got = "body"
		}
	case err != nil:
		t.Fatalf("error of type %T", err)
	}
	if got != bad {
		t.Fatalf("error is %v, want one about %q\nbody: %q", err, bad, body)
	}
	if err != nil {
		return
	}
	have := see(r)
	for i := range have.Items {
		it := &have.Items[i]
		if !json.Valid([]byte(it.Part)) || !strings.HasPrefix(it.Part, "{") {
			t.Fatalf("an item that is no JSON: %q\nbody: %q", it.Part, body)
		}
		it.Part = ""
		if r.Items[i].data.raw {
			if !json.Valid([]byte(it.Content)) {
				t.Fatalf("a content that is no JSON: %q\nbody: %q", it.Content, body)
			}
			it.Content = "raw"
		}
		if _, ok := r.ItemHash(&r.Items[i]); ok != (it.Content != "-") {
			t.Fatalf("the item has a hash: %v\nbody: %q", ok, body)
		}
	}
	for _, raw := range []*string{&have.Messages, &have.Tools, &have.System} {
		if *raw == "" {
			continue
		}
		if !json.Valid([]byte(*raw)) {
			t.Fatalf("a span that is no JSON: %q\nbody: %q", *raw, body)
		}
		*raw = "set"
	}
	// The model neither cuts texts nor knows how many pieces are kept.
	if len(want.Prompts) > 0 || len(want.Stable) > 64 || strings.Count(string(body), "text") > 4 || want.NumMessages > 4 || route == Embeddings {
		have.Stable, want.Stable = "", ""
	}
	// Nor does it know which of two different keys was last.
	if route == Responses && bytes.Contains(body, []byte("output")) && bytes.Contains(body, []byte("content")) {
		have.Items, want.Items, have.Stable, want.Stable, have.Multimodal, want.Multimodal = nil, nil, "", "", false, false
	}
	if d := cmp.Diff(want, have, cmp.Transformer("empty", func(ids []uint32) []uint32 { return append([]uint32{}, ids...) })); d != "" {
		t.Fatalf("request differs (-want +got):\n%s\nbody: %q", d, body)
	}
	var model string
	if err := json.Unmarshal(body[r.ModelAt:r.ModelEnd], &model); err != nil || model != r.Model {
		t.Fatalf("the model lies at %q", body[r.ModelAt:r.ModelEnd])
	}
	checkTexts(t, r)
	var fields map[string]any
	dec := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(body, byteOrderMark)))
	dec.UseNumber()
	if err := dec.Decode(&fields); err != nil {
		t.Fatal(err)
	}
	for name, v := range fields {
		if len(name) >= maxName || len(r.fields) == maxFields {
			continue
		}
		checkRaw(t, r, name, v)
		if slices.Contains([]string{"prompt", "messages", "input", "system"}, name) {
			continue
		}
		wantValue, wantOK := v.(string)
		if value, ok := r.Field(name); value != wantValue || ok != wantOK {
			t.Fatalf("Field(%q) = %q, %v; want %q, %v\nbody: %q", name, value, ok, wantValue, wantOK, body)
		}
	}
}

// checkTexts compares the texts of messages with what stands for them in the body.
func checkTexts(t *testing.T, r *Request) {
	t.Helper()
	if len(r.texts) > 0 && r.Route != ChatCompletions {
		t.Fatalf("%d texts of %s", len(r.texts), r.Route)
	}
	before := -1
	for _, at := range r.texts {
		text, end, ok := r.TextAt(at.at)
		var want string
		if err := json.Unmarshal(r.body[at.at:end], &want); err != nil || !ok || text != want || at.at <= before {
			t.Fatalf("text %q at %d behind %d, want %q: %v\nbody: %q", text, at.at, before, want, err, r.body)
		}
		if _, _, ok := r.TextAt(at.at + 1); ok {
			t.Fatalf("a text at %d, where none begins\nbody: %q", at.at+1, r.body)
		}
		before = end
	}
}

// checkRaw compares the raw value of a field with the decoded one.
func checkRaw(t *testing.T, r *Request, name string, want any) {
	t.Helper()
	raw, ok := r.Raw(name)
	if !ok || (raw == nil) != (want == nil) {
		t.Fatalf("Raw(%q) = %q, %v\nbody: %q", name, raw, ok, r.body)
	}
	if raw == nil {
		return
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var got any
	if err := dec.Decode(&got); err != nil || !reflect.DeepEqual(got, want) || dec.More() {
		t.Fatalf("Raw(%q) = %q, %v\nbody: %q", name, raw, err, r.body)
	}
}

func TestParseAgreesWithATree(t *testing.T) {
	w := &writer{rng: rand.New(rand.NewPCG(1, 2))}
	var r Request
	var good [numRoutes]int
	texts := 0
	const rounds = 1_500
	for round := range rounds * numRoutes {
		route := Route(round % numRoutes)
		checkParse(t, route, w.request(), &r)
		if r.Model != "" {
			good[route]++
			texts += len(r.texts)
		}
	}
	if texts < rounds/50 {
		t.Errorf("only %d long texts", texts)
	}
	for route, n := range good {
		if n < rounds/10 {
			t.Errorf("only %d of %d requests for %s were sound", n, rounds, Route(route))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","prompt":[1,2,3],"stream":true}`,
		`{"model":"m","prompt":["a","\ud83d\ude00"],"user":"\u0000"}`,
		`{"model":"m","prompt":[[1],[2.0]],"stream_options":{"include_usage":true}}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url"}]}],"tools":[]}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:a,b","uuid":"u"}]},{"type":"function_call_output","output":"x"}]}`,
		`{"model":"m","instructions":"i","input":"x","previous_response_id":"r","truncation":"auto"}`,
		`{"model":"m","input":[[{"role":"user"}]],"truncation_side":"right"}`,
		`{"model":"m","system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result","content":` +
			`[{"type":"image","source":{"type":"base64","data":"AA"}}]}]}],"metadata":{"user_id":"u"}}`,
		"{\"model\":\"\xff\",\"prompt\":1e5}",
		"\ufeff{\"model\":\"m\",\"prompt\":\"x\"}",
		strings.Repeat("[", 200),
	} {
		for route := range numRoutes {
			f.Add(uint8(route), []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, route uint8, body []byte) {
		checkParse(t, Route(int(route)%numRoutes), body, new(Request))
	})
}

func TestEveryCutOfARequestIsRefused(t *testing.T) {
	body := `{"model":"m\u0041","prompt":[1,2,3],"a":{"b":[true,false,null,-1.5e+3,"\ud83d\ude00"]},"messages":[{"role":"user","content":["x"]}]}`
	body = strings.Replace(body, `"x"`, `{"type":"tool_result","content":[{"image_url":{"url":"x"},"uuid":null}],"text":"x"}`, 1)
	body = strings.Replace(body, `"a"`, `"metadata":{"user_id":"u","a":1},"system":[{"text":"x"}],"input":[{"output":["x"]}],"instructions":"x","a"`, 1)
	for route := range Route(numRoutes) {
		for i := range len(body) {
			var r Request
			var syntax *SyntaxError
			if err := Parse(route, []byte(body[:i]), &r); !errors.As(err, &syntax) {
				t.Errorf("%q: error is %v", body[:i], err)
			} else if syntax.Offset != i {
				t.Errorf("%q: ends at %d, not at %d", body[:i], i, syntax.Offset)
			}
		}
	}
}
