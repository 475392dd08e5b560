package openai

import (
	"bytes"
	"encoding/json"
)

// The fields by which vLLM's NixlConnector hands a prompt over from the engine that prefills to the one that decodes: the first
// is asked to hold the blocks, and answers with the parameters by which the second finds them.
const (
	transferField = "kv_transfer_params"
	outputField   = "max_completion_tokens"
	responseField = "max_output_tokens" // of Responses, in place of max_tokens
	// AsksPrefill are the parameters of a first leg for NixlConnector.
	AsksPrefill = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,` +
		`"remote_host":null,"remote_port":null}`
)

// MooncakeParameters are those of both legs of a request for MooncakeConnector. id names the transfer. The second engine finds the first
// one by the URL of its bootstrap server and the id that this gives for it.
func MooncakeParameters(id, bootstrap, engine string) (first, second []byte) {
	type parameters struct {
		RemoteDecode  bool   `json:"do_remote_decode"`
		RemotePrefill bool   `json:"do_remote_prefill"`
		Transfer      string `json:"transfer_id"`
		Bootstrap     string `json:"remote_bootstrap_addr,omitempty"`
		Engine        string `json:"remote_engine_id,omitempty"`
	}
	return encode(parameters{RemoteDecode: true, Transfer: id}),
		encode(parameters{RemotePrefill: true, Transfer: id, Bootstrap: bootstrap, Engine: engine})
}

// OffloadingParameters are those of both legs of a request for the tier p2p of the offloading connector. id names the request, and host
// and port are where the first engine's tier listens.
func OffloadingParameters(id, host string, port int) (first, second []byte) {
	return encode(map[string]tierSide{"remote_decoder": {Request: id}}), encode(map[string]tierSide{"remote_prefiller": {id, host, port}})
}

// PullParameters are those of a request whose engine loads blocks of a peer's tier p2p.
func PullParameters(id, host string, port int) []byte {
	return encode(map[string]tierSide{"remote_kv_source": {id, host, port}})
}

// tierSide is what a leg says of the other side.
type tierSide struct {
	Request string `json:"kv_request_id"`
	Host    string `json:"remote_host,omitempty"`
	Port    int    `json:"remote_port,omitempty"`
}

func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and booleans
	}
	return raw
}

// HandoffBytes is about how many bytes the body of a leg has more than the request's, without the parameters.
const HandoffBytes = 512

// AppendPrefill appends to dst the body of the first leg of a request of a route, which Parse has read: the engine generates one token,
// which is not streamed, and holds the blocks of the prompt, as parameters ask.
func AppendPrefill(dst []byte, route Route, body []byte, parameters string) []byte {
	at, bounded, most := len(dst), false, "max_tokens"
	if route == Responses {
		most = responseField
	}
	dst = append(dst, body...)
	dropMembers(dst[at:], func(name []byte) bool {
		switch string(name) {
		case outputField:
			bounded = true
			return true
		case transferField, "stream", streamOptions, most, "min_tokens", "min_completion_tokens":
			return true
		case "store": // the answer of the second leg is kept
			return route == Responses
		case "echo", "return_token_ids", "logprobs", "top_logprobs": // the answer is thrown away, and must stay small
			return true
		}
		return false
	})
	dst = openObject(dst, at)
	if bounded {
		dst = append(dst, `"`+outputField+`":1,`...)
	}
	if route == Responses {
		dst = append(dst, `"store":false,`...)
	}
	return append(dst, `"stream":false,"`+most+`":1,"`+transferField+`":`+parameters+`}`...)
}

// AppendDecode appends to dst the body of the second leg: that of the request, with the parameters of HandoffParameters.
func AppendDecode(dst, body, parameters []byte) []byte {
	at := len(dst)
	dst = append(dst, body...)
	dropMembers(dst[at:], func(name []byte) bool { return string(name) == transferField })
	dst = append(openObject(dst, at), `"`+transferField+`":`...)
	return append(append(dst, parameters...), '}')
}

// openObject takes the closing brace off the JSON object dst[at:], so that a member can follow.
func openObject(dst []byte, at int) []byte {
	const space = " \t\r\n"
	end := len(bytes.TrimRight(dst, space)) - 1
	dst = dst[:at+len(bytes.TrimRight(dst[at:end], space))]
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	return dst
}

// HandoffParameters returns the parameters in the answer to a first leg, byte for byte, because their form differs from
// release to release. They are nil if there are none, as in answers of engines without a connector. owed: engines with a
// connector would have had some, because the answer has ended by its length; some releases hold no blocks for others. Answers to Messages
// and Responses owe none, because older releases have no such field there.
func HandoffParameters(answer []byte) (parameters []byte, owed bool) {
	var members struct {
		Parameters json.RawMessage `json:"kv_transfer_params"`
		Choices    []struct {
			Reason string `json:"finish_reason"`
		} `json:"choices"`
	}
	var meaning struct {
		RemotePrefill bool `json:"do_remote_prefill"`
	}
	if json.Unmarshal(answer, &members) != nil {
		return nil, false
	}
	if json.Unmarshal(members.Parameters, &meaning) != nil || !meaning.RemotePrefill {
		return nil, len(members.Choices) == 1 && members.Choices[0].Reason == "length"
	}
	return members.Parameters, false
}
