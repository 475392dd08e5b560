package real

import "testing"

// embedded is a request to /v1/embeddings.
func embedded(fields object) func(string, int) request {
	return func(id string, turn int) request {
		return request{path: "/v1/embeddings", body: object{"model": "m", "input": prompt(id, turn)}}.with(fields)
	}
}

// never is a release that does not exist.
const never = "99.0"

// embeddings are requests to a model that generates nothing. Their usage does not tell what was found.
var embeddings = []shape{
	{name: "embeddings of a text", byMetrics: true, body: embedded(nil)},
	{name: "embeddings of ids", byMetrics: true, body: func(id string, turn int) request {
		return embedded(object{"input": ids(family(id), 300+90*turn)})(id, turn)
	}},
	{name: "embeddings of texts", byMetrics: true, body: func(id string, turn int) request {
		return embedded(object{"input": []string{prompt(id, turn), prompt("e"+id, turn)}})(id, turn)
	}},
	{name: "embeddings of lists of ids", byMetrics: true, body: func(id string, turn int) request {
		return embedded(object{"input": [][]int{ids(family(id), 300+90*turn), ids(family(id)+1, 200)}})(id, turn)
	}},
	{name: "embeddings in base64", byMetrics: true, body: embedded(object{"encoding_format": "base64"})},
	{name: "short embeddings", byMetrics: true, truncated: true, body: embedded(object{"truncate_prompt_tokens": 100})},
	{name: "embeddings without special tokens", byMetrics: true, body: embedded(object{"add_special_tokens": false})},
	{name: "embeddings of messages", rendered: never, byMetrics: true, body: func(id string, turn int) request {
		return request{path: "/v1/embeddings", body: object{"model": "m", "messages": conversation(id, turn)}}
	}},
	{name: "embeddings of messages as input", since: "0.32", rendered: never, byMetrics: true, body: func(id string, turn int) request {
		return embedded(object{"input": conversation(id, turn)})(id, turn)
	}},
	{name: "embeddings with a salt", byMetrics: true, body: embedded(object{"cache_salt": "s"})},
}

// TestEmbeddingsAreFollowed: an engine with a model of embeddings finds what the picker predicts, whether the picker makes the ids or
// asks for them. That engine has no route that renders, and none that serves a text or a chat.
func TestEmbeddingsAreFollowed(t *testing.T) {
	needWholeRun(t)
	engines := startEngines(t, engineConfig{flags: []string{"--runner", "pooling", "--convert", "embed"}})
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			p := startPicker(t, engines, pickerConfig{files: c.files})
			for _, s := range embeddings {
				t.Run(s.name, func(t *testing.T) {
					if s.since != "" && !atLeast(s.since) {
						t.Skipf("vLLM %s takes no such request", run.release)
					}
					body := s.body
					s.body = func(id string, turn int) request {
						r := body(id, turn)
						r.shape = s.name
						return r
					}
					verdict(t, p.judgeShape(s, "embedded "+c.name))
				})
			}
			verdict(t, p.conditionsAreTrue("TokensExact"))
		})
	}
}
