package openai

import (
	"errors"
	"strings"
	"testing"
)

const continuable = `{"model":"m","prompt":[1,2, 3 ],"max_tokens":5,"stream":true,"return_token_ids":true,"temperature":0.5,"user":"<&>"}`

func TestOnlyStreamsWhoseRestDependsOnTokensAloneCanBeContinued(t *testing.T) {
	with := func(old, replacement string) string { return strings.Replace(continuable, old, replacement, 1) }
	for name, tc := range map[string]struct {
		body  string
		asked bool
		want  bool
	}{
		"as documented":              {body: continuable, want: true},
		"options that are null":      {body: with(`{`, `{"stop":null,"seed":null,"n":null,"stream_options":null,`), want: true},
		"one answer":                 {body: with(`{`, `{"n":1,`), want: true},
		"usage for the picker":       {body: with(`{`, `{"stream_options":{"include_usage":true},`), asked: true, want: true},
		"usage for the client":       {body: with(`{`, `{"stream_options":{"include_usage":true},`)},
		"a text":                     {body: with(`[1,2, 3 ]`, `"text"`)},
		"several prompts":            {body: with(`[1,2, 3 ]`, `[[1],[2]]`)},
		"no prompt":                  {body: with(`[1,2, 3 ]`, `[]`)},
		"a negative id":              {body: with(`[1,2, 3 ]`, `[-1]`)},
		"no stream":                  {body: with(`"stream":true`, `"stream":false`)},
		"no token ids":               {body: with(`"return_token_ids":true`, `"return_token_ids":false`)},
		"no limit":                   {body: with(`"max_tokens":5,`, ``)},
		"a limit that is too high":   {body: with(`"max_tokens":5`, `"max_tokens":1000000`)},
		"several answers":            {body: with(`{`, `{"n":2,`)},
		"a seed":                     {body: with(`{`, `{"seed":1,`)},
		"a penalty":                  {body: with(`{`, `{"presence_penalty":0.5,`)},
		"a stop string":              {body: with(`{`, `{"stop":"a",`)},
		"logprobs":                   {body: with(`{`, `{"logprobs":1,`)},
		"a structure":                {body: with(`{`, `{"structured_outputs":{},`)},
		"a field of another release": {body: with(`{`, `{"new_field":1,`)},
		"no JSON":                    {body: continuable[1:]},
	} {
		if got := Continuable([]byte(tc.body), tc.asked) != nil; got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// follow gives a continuation the events of an engine and returns what the client gets.
func follow(t *testing.T, c *Continuation, events ...string) (out []string, gaveUp bool) {
	t.Helper()
	for _, e := range events {
		data, gave, err := c.Event([]byte(e))
		if err != nil {
			t.Fatal(err)
		}
		if gave {
			return out, true
		}
		out = append(out, string(data))
	}
	return out, false
}

func TestTheRestIsAskedForFromTheTokensThatTheClientHas(t *testing.T) {
	c := Continuable([]byte(continuable), false)
	first := `{"id":"cmpl-1","created":7,"choices":[{"index":0,"text":"a","finish_reason":null,"prompt_token_ids":[1,2,3],"token_ids":[10]}]}`
	second := `{"id":"cmpl-1","created":7,"choices":[{"index":0,"text":"b<","finish_reason":null,"token_ids":[11,12]}],"usage":null}`
	out, gaveUp := follow(t, c, first, second)
	if gaveUp || len(out) != 2 || out[0] != first || out[1] != second || !c.Ready() || c.Sent() != 3 {
		t.Fatalf("%q, %v, %+v", out, gaveUp, c)
	}
	if _, gaveUp = follow(t, c, `{"id":"cmpl-1","choices":[{"index":0,"text":"","finish_reason":"abort","token_ids":[]}]}`); !gaveUp || !c.Ready() {
		t.Error("an abort is taken for the end")
	}
	body, err := c.Body([]byte(continuable))
	want := `{"max_tokens":2,"model":"m","prompt":[1,2, 3 ,10,11,12],"return_token_ids":true,"stream":true,"temperature":0.5,"user":"<&>"}`
	if err != nil || strings.ReplaceAll(string(body), " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Fatalf("%v\n%s, want\n%s", err, body, want)
	}
	out, gaveUp = follow(t, c,
		`{"id":"cmpl-2","created":9,"choices":[{"index":0,"text":"c","finish_reason":null,"prompt_token_ids":[1,2,3,10,11,12],"token_ids":[13]}]}`,
		`{"id":"cmpl-2","created":9,"choices":[{"index":0,"text":"d<","finish_reason":"length","token_ids":[14]}]}`, `[DONE]`)
	wantOut := []string{
		`{"choices":[{"finish_reason":null,"index":0,"text":"c","token_ids":[13]}],"created":7,"id":"cmpl-1"}`,
		`{"choices":[{"finish_reason":"length","index":0,"text":"d<","token_ids":[14]}],"created":7,"id":"cmpl-1"}`, `[DONE]`,
	}
	if gaveUp || strings.Join(out, "\n") != strings.Join(wantOut, "\n") {
		t.Errorf("got\n%s, want\n%s", strings.Join(out, "\n"), strings.Join(wantOut, "\n"))
	}
	if c.Ready() || !c.Ended() {
		t.Error("a complete answer could be continued")
	}
}

// TestNoAnswerIsContinuedThatMightChange: where some text might still belong to the last token, where tokens are unknown, and
// where an engine does not do what was asked.
func TestNoAnswerIsContinuedThatMightChange(t *testing.T) {
	event := func(text, ids string) string {
		return `{"choices":[{"index":0,"text":"` + text + `","finish_reason":null,"token_ids":` + ids + `}]}`
	}
	for name, events := range map[string][]string{
		"nothing was sent":             {},
		"half a character":             {event(`a`, `[1]`), event(`\ufffd`, `[2]`)},
		"no text":                      {event(`a`, `[1]`), event(``, `[2]`)},
		"an engine without token ids":  {event(`a`, `null`)},
		"all that was asked for":       {event(`abcde`, `[1,2,3,4,5]`)},
		"more than was asked for":      {event(`abcdef`, `[1,2,3,4,5,6]`)},
		"another prompt":               {`{"choices":[{"text":"a","token_ids":[1],"prompt_token_ids":[1,2]}]}`},
		"several answers":              {`{"choices":[{"text":"a","token_ids":[1]},{"text":"b","token_ids":[1]}]}`},
		"an event that cannot be read": {event(`a`, `[1]`), `{`},
	} {
		c := Continuable([]byte(continuable), false)
		if out, gaveUp := follow(t, c, events...); gaveUp || len(out) != len(events) {
			t.Errorf("%s: the client gets %q", name, out)
		}
		if c.Ready() {
			t.Errorf("%s: it could be continued", name)
		}
	}
	c := Continuable([]byte(continuable), false)
	follow(t, c, event(`a`, `[1]`))
	if _, err := c.Body([]byte(continuable)); err != nil {
		t.Fatal(err)
	}
	for _, e := range []string{
		`{"choices":[{"text":"b","token_ids":[2],"prompt_token_ids":[1,2,3]}]}`, event(`b`, `null`), event(`bcdef`, `[2,3,4,5,6]`), `{`,
	} {
		again := *c
		if out, _, err := again.Event([]byte(e)); !errors.Is(err, ErrContinue) || out != nil {
			t.Errorf("the client gets %q of %s: %v", out, e, err)
		}
	}
}

func FuzzContinuation(f *testing.F) {
	f.Add([]byte(continuable), []byte(`{"id":"a","choices":[{"index":0,"text":"a","token_ids":[1]}]}`), []byte(`[DONE]`))
	f.Fuzz(func(t *testing.T, body, first, second []byte) {
		c := Continuable(body, false)
		if c == nil {
			return
		}
		_, _, _ = c.Event(first)
		if !c.Ready() {
			return
		}
		sent := c.Sent()
		rest, err := c.Body(body)
		if err != nil {
			t.Fatalf("no request for the rest: %v", err)
		}
		r := Continuable(rest, false)
		if r == nil || r.prompt != c.prompt+sent || r.most != c.most-sent {
			t.Fatalf("the request for the rest is %s", rest)
		}
		_, _, _ = c.Event(second)
		if c.Sent() > c.most {
			t.Fatalf("%d of %d tokens", c.Sent(), c.most)
		}
	})
}
