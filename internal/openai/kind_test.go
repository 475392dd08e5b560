package openai

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKinds(t *testing.T) {
	cases := map[string]struct {
		route Route
		body  string
		want  []Kind
		main  Kind
	}{
		"a text":                     {Completions, `{"model":"m","prompt":"a"}`, []Kind{KindText}, KindText},
		"a text with specials":       {Completions, `{"model":"m","prompt":"a","add_special_tokens":false}`, []Kind{KindText}, KindText},
		"ids":                        {Completions, `{"model":"m","prompt":[1,2]}`, []Kind{KindIDs}, KindIDs},
		"several texts":              {Completions, `{"model":"m","prompt":["a","b"]}`, []Kind{KindText, KindList}, KindList},
		"several lists of ids":       {Completions, `{"model":"m","prompt":[[1],[2]]}`, []Kind{KindIDs, KindList}, KindList},
		"prompt embeddings":          {Completions, `{"model":"m","prompt_embeds":"AA"}`, []Kind{KindText, KindContent}, KindContent},
		"an input of embeddings":     {Embeddings, `{"model":"m","input":"a"}`, []Kind{KindText}, KindText},
		"a chat for embeddings":      {Embeddings, `{"model":"m","messages":[{"role":"user","content":"a"}]}`, []Kind{KindChat}, KindChat},
		"a chat":                     {ChatCompletions, `{"model":"m","messages":[{"role":"user","content":"a"}]}`, []Kind{KindChat}, KindChat},
		"the role developer":         {ChatCompletions, `{"model":"m","messages":[{"role":"developer","content":"a"}]}`, []Kind{KindChat, KindDeveloper}, KindDeveloper},
		"of two roles the last":      {ChatCompletions, `{"model":"m","messages":[{"role":"developer","role":"user","content":"a"}]}`, []Kind{KindChat}, KindChat},
		"of two lists the last":      {ChatCompletions, `{"model":"m","messages":[{"role":"developer","content":"a"}],"messages":[{"role":"user","content":"a"}]}`, []Kind{KindChat}, KindChat},
		"tools":                      {ChatCompletions, `{"model":"m","tools":[{}],"messages":[{"role":"user","content":"a"}]}`, []Kind{KindChat, KindTools}, KindTools},
		"a result without tools":     {ChatCompletions, `{"model":"m","messages":[{"role":"tool","content":"a"}]}`, []Kind{KindChat, KindTools}, KindTools},
		"a call without tools":       {ChatCompletions, `{"model":"m","messages":[{"role":"assistant","tool_calls":[]}]}`, []Kind{KindChat, KindTools}, KindTools},
		"calls that are null":        {ChatCompletions, `{"model":"m","messages":[{"role":"assistant","content":"a","tool_calls":null}]}`, []Kind{KindChat}, KindChat},
		"reasoning":                  {ChatCompletions, `{"model":"m","messages":[{"role":"assistant","content":"a","reasoning":"b"}]}`, []Kind{KindChat, KindReasoning}, KindReasoning},
		"reasoning_content":          {ChatCompletions, `{"model":"m","messages":[{"role":"assistant","content":"a","reasoning_content":"b"}]}`, []Kind{KindChat, KindReasoning}, KindReasoning},
		"parts":                      {ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`, []Kind{KindChat, KindParts}, KindParts},
		"an image":                   {ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, []Kind{KindChat, KindParts, KindContent}, KindContent},
		"arguments":                  {ChatCompletions, `{"model":"m","reasoning_effort":"low","messages":[{"role":"user","content":"a"}]}`, []Kind{KindChat, KindArguments}, KindArguments},
		"arguments taken back":       {ChatCompletions, `{"model":"m","documents":[],"documents":null,"messages":[{"role":"user","content":"a"}]}`, []Kind{KindChat}, KindChat},
		"developer, tools and parts": {ChatCompletions, `{"model":"m","tools":[{}],"messages":[{"role":"developer","content":[]}]}`, []Kind{KindChat, KindParts, KindTools, KindDeveloper}, KindDeveloper},
		"responses":                  {Responses, `{"model":"m","truncation":"disabled","input":"a"}`, []Kind{KindResponses}, KindResponses},
		"responses one engine keeps": {Responses, `{"model":"m","input":"a","previous_response_id":"x"}`, []Kind{KindResponses, KindContent}, KindContent},
		"messages":                   {Messages, `{"model":"m","messages":[{"role":"user","content":"a"}]}`, []Kind{KindMessages}, KindMessages},
	}
	var r Request // used again, so that nothing of one request is left in the next
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := Parse(tc.route, []byte(tc.body), &r); err != nil {
				t.Fatal(err)
			}
			kinds := r.Kinds()
			if d := cmp.Diff(tc.want, slices.Collect(kinds.All)); d != "" {
				t.Error(d)
			}
			if kinds != KindsOf(tc.want...) || kinds.Main() != tc.main {
				t.Errorf("set %b with main kind %s; want %v with %s", kinds, kinds.Main(), tc.want, tc.main)
			}
		})
	}
}

func TestEveryKindHasAName(t *testing.T) {
	seen := map[string]bool{}
	for k := range NumKinds {
		name := Kind(k).String()
		if name == "" || seen[name] {
			t.Errorf("kind %d is named %q", k, name)
		}
		seen[name] = true
	}
	if m := Kinds(0).Main(); m != KindText {
		t.Errorf("the empty set has the main kind %s", m)
	}
}
