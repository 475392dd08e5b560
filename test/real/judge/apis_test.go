package judge

import (
	"strings"
	"testing"
)

// TestOtherAPIsAreObserved: what the cases of other APIs and of pooling models show of vllmsim has the facts that vLLM's sources
// state, by the paths under which a recording has them.
func TestOtherAPIsAreObserved(t *testing.T) {
	shown, err := simulateAll(t.Context(), "0.32.0", model(t), APIs, Pooling)
	if err != nil {
		t.Fatal(err)
	}
	const full, ending = "with full queues: ", "SIGTERM: while running requests end: "
	for name, want := range map[string]map[string]string{
		"/messages plain":                                        {"status": "200", "body.type": `"message"`, "body.stop_reason": `"max_tokens"`, "body.usage.output_tokens": "3"},
		"/messages of the long prompt again":                     {"status": "200", "body.usage.cache_creation_input_tokens": "0"},
		"/messages of a wrong model":                             {"status": "404", "body.type": `"error"`, "body.error.type": `"NotFoundError"`},
		"/messages without a maximum":                            {"status": "400", "body.error.code": "400", "body.error.param": `"body.max_tokens"`},
		"/messages with a tool result":                           {"status": "200"},
		"/messages streamed":                                     {"stream.numbered": "false", "stream.message_delta.usage.output_tokens": "20"},
		"/messages/render with tools":                            {"status": "200"},
		"/responses plain":                                       {"status": "200", "body.status": `"incomplete"`, "body.usage.output_tokens": "3"},
		"/responses with a tool result":                          {"status": "200"},
		"/responses that continues an unknown one":               {"status": "404", "body.error.param": `"response_id"`},
		"/responses streamed":                                    {"stream.numbered": "true", "stream.response.completed.response.status": `"incomplete"`},
		"GET /v1/responses/another":                              {"status": "404", "body.error.type": `"invalid_request_error"`},
		"/messages  without a key":                               {"status": "401"},
		"/messages  with the key as Anthropic's clients show it": {"status": "401"},
		full + "/messages streamed":                              {"status": "503", "body.type": `"error"`},
		full + "/responses streamed":                             {"status": "503", "body.error.code": "503"},
		ending + "/messages plain":                               {"status": "503", "body.type": `"error"`},
		"SIGTERM: the engine":                                    {"waits for running requests": "yes", "ends": "yes"},
		Pooling.Name + "/rerank of the best":                     {"status": "200", "body.results[0].index": "1"},
	} {
		if !strings.HasPrefix(name, Pooling.Name) {
			name = APIs.Name + name
		}
		for path, value := range want {
			if got := shown[name][path]; got != value {
				t.Errorf("%s: %s is %s, want %s", name, path, got, value)
			}
		}
	}
	for name, order := range map[string]string{
		"/messages streamed": "message_start content_block_start content_block_delta content_block_stop message_delta message_stop",
		"/responses streamed": "response.created response.in_progress response.output_item.added response.content_part.added " +
			"response.output_text.delta response.output_text.done response.content_part.done response.output_item.done response.completed",
	} {
		if got := shown[APIs.Name+name]["stream.order"]; got != order {
			t.Errorf("%s has the events %s", name, got)
		}
	}
	for name, o := range shown {
		if strings.HasPrefix(name, APIs.Name) && o["connection"] == "broken" {
			t.Errorf("%s: the connection breaks", name)
		}
	}
}
