package vllmsim

import (
	"encoding/json"
	"net/http"
)

// serveGenerate takes token ids and returns token ids (/inference/v1/generate); streams are not simulated.
func (e *Engine) serveGenerate(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req struct {
		common
		TokenIDs json.RawMessage `json:"token_ids"`
		Sampling struct {
			MaxTokens *number `json:"max_tokens"`
		} `json:"sampling_params"`
	}
	if err := decode(body, &req); err != nil {
		return err
	}
	if len(req.TokenIDs) == 0 || req.TokenIDs[0] != '[' {
		return badRequest("token_ids", "token_ids must be a list of token ids")
	}
	ids, ok := parseIDs(req.TokenIDs)
	if !ok || len(ids) == 0 {
		return badRequest("token_ids", "token_ids must be a list of token ids")
	}
	if _, err := e.adapter(req.Model); err != nil {
		return err
	}
	if req.Stream {
		return badRequest("stream", "streams are not simulated here")
	}
	req.MaxTokens = req.Sampling.MaxTokens
	if req.MaxTokens == nil {
		d := number(completionTokens)
		req.MaxTokens = &d
	}
	a, err := e.newAnswer(r, &req.common, [][]uint32{ids}, false)
	if err != nil {
		return err
	}
	a.generate = true
	a.serve(w, r)
	return nil
}

// writeGenerated writes the answer of /inference/v1/generate.
func (a *answer) writeGenerated(w http.ResponseWriter, views []view) {
	choices := make([]map[string]any, len(views))
	for i, v := range views {
		choices[i] = map[string]any{"index": i, "logprobs": nil, "finish_reason": v.finish, "token_ids": notNil(v.tokens)}
	}
	a.e.writeJSON(w, map[string]any{
		"request_id": a.id, "created": a.created, "model": a.model, "choices": choices, "usage": a.usage(views), "prompt_logprobs": nil,
		"kv_transfer_params": a.e.handed(a.streams[0], views[0], len(a.prompts[0])),
	})
}
