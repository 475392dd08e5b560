package judge

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestATranscriptIsReadAsItWasWritten(t *testing.T) {
	newer := Transcript{"a": {"status": "200", "body.x": `"two words = three"`}, "b": {"status": "404"}}
	older := Transcript{"a": {"status": "200"}, "c": {"body": "empty"}}
	for name, tc := range map[string]struct{ written, base Transcript }{
		"whole":                   {newer, nil},
		"changes against another": {older, newer},
		"no changes":              {newer, newer},
		"a variant less":          {newer, Transcript{"a": {"status": "200"}, "pooling: a": {"status": "200", "x": "1"}, "pooling: b": {"status": "200"}}},
	} {
		var b bytes.Buffer
		if err := tc.written.Write(&b, tc.base); err != nil {
			t.Fatal(err)
		}
		got, err := Read(&b, tc.base)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.written, got); diff != "" {
			t.Errorf("%s (-written +read):\n%s", name, diff)
		}
	}
	for _, text := range []string{"status = 200\n", "== a\nnonsense\n"} {
		if _, err := Read(strings.NewReader(text), nil); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

func TestADifferenceIsListedOrRefusedAndTheListHasNoOthers(t *testing.T) {
	found := Compare(Transcript{"a": {"status": "200", "x": "1"}}, Transcript{"a": {"status": "404", "y": "2"}})
	want := []Difference{{"a", "status", "200", "404"}, {"a", "x", "1", absent}, {"a", "y", absent, "2"}}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	list := []Allowed{{Path: "x", Reason: "listed"}, {Case: "b", Reason: "idle"}, {Path: "y", Sim: "3", Reason: "another value"}}
	refused, idle, err := Verdict(list, found)
	if err != nil {
		t.Fatal(err)
	}
	if len(refused) != 2 || refused[0].Path != "status" || refused[1].Path != "y" {
		t.Errorf("refused %v", refused)
	}
	if len(idle) != 2 || idle[0].Reason != "idle" || idle[1].Reason != "another value" {
		t.Errorf("idle %v", idle)
	}
	if _, _, err := Verdict([]Allowed{{Path: "("}}, nil); err == nil {
		t.Error("an invalid pattern is accepted")
	}
}

func TestShapes(t *testing.T) {
	o := Observation{}
	o.noteJSON("body", []byte(`{"id": "cmpl-1", "n": 1, "gone": null, "usage": {"prompt_tokens": 3}, "choices": [{"text": "x", "token_ids": [7, 8]}],
		"token_ids": [], "endpoint": "tcp://*:5557"}`), false)
	want := Observation{
		"body.id": "string", "body.n": "1", "body.usage.prompt_tokens": "3", "body.choices[0].text": "string",
		"body.choices[0].token_ids": "2 numbers", "body.token_ids": "[]", "body.endpoint": `"tcp://address"`,
	}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestStreamsAreNotedAlikeHoweverTheyAreCut: engines put the tokens that a slow reader has not taken into one chunk.
func TestStreamsAreNotedAlikeHoweverTheyAreCut(t *testing.T) {
	const end = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\ndata: [DONE]\n\n"
	want := Observation{
		"stream.chunks.choices[0].text": "string", "stream.chunks.choices[0].finish_reason": `"stop"`,
		"stream.chunks.choices[0].token_ids": "3 numbers", "stream.chunks.choices[0].prompt_token_ids": "[5 6]",
		"stream.chunks.usage.completion_tokens": "3",
		"stream.after.choices":                  "[]", "stream.after.usage.prompt_tokens": "3", "stream.end": "[DONE]",
	}
	for name, stream := range map[string]string{
		"a token in each": `data: {"choices":[{"text":"a","prompt_token_ids":[5,6],"token_ids":[1]}],"usage":{"completion_tokens":1}}` + "\n\n" +
			`data: {"choices":[{"text":"b","token_ids":[2]}],"usage":{"completion_tokens":2}}` + "\n\n" +
			`data: {"choices":[{"text":"c","finish_reason":"stop","token_ids":[3]}],"usage":{"completion_tokens":3}}` + "\n\n",
		"all in one": `data: {"choices":[{"text":"abc","finish_reason":"stop","prompt_token_ids":[5,6],"token_ids":[1,2,3]}],` +
			`"usage":{"completion_tokens":3}}` + "\n\n",
	} {
		o := Observation{}
		o.noteStream("stream", []byte(stream+end))
		if diff := cmp.Diff(want, o); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x91, 0xb0, 'A', 'l', 'l', 'B', 'l', 'o', 'c', 'k', 's', 'C', 'l', 'e', 'a', 'r', 'e', 'd', 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		_, rest, err := unpack(data)
		if err == nil && len(rest) >= len(data) {
			t.Errorf("read nothing of %x", data)
		}
		Observation{}.noteBatch(0, data, renamer{}, nil)
	})
}
