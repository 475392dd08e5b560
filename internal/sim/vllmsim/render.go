package vllmsim

import (
	"net/http"
)

// generateRequest is what the render endpoints return: the request as the engine would run it.
type generateRequest struct {
	RequestID      string         `json:"request_id"`
	TokenIDs       []uint32       `json:"token_ids"`
	Features       any            `json:"features"`
	SamplingParams map[string]any `json:"sampling_params"`
	Model          string         `json:"model"`
	Stream         bool           `json:"stream"`
	CacheSalt      *string        `json:"cache_salt"`
	Priority       int            `json:"priority"`
	KVTransfer     any            `json:"kv_transfer_params"`
}

func (e *Engine) generateRequest(r *http.Request, prefix string, c *common, ids []uint32) (generateRequest, error) {
	spec, err := e.spec(c, ids)
	if err != nil {
		return generateRequest{}, err
	}
	g := generateRequest{
		RequestID: e.requestID(prefix, r, c), TokenIDs: notNil(ids), Model: c.Model, Stream: c.Stream,
		CacheSalt: c.CacheSalt, Priority: c.Priority,
		SamplingParams: map[string]any{"max_tokens": spec.MaxTokens, "n": 1},
	}
	setDefault(&g.Model, e.cfg.ServedModelNames[0])
	if len(c.KVTransfer) > 0 {
		g.KVTransfer = c.KVTransfer
	}
	return g, nil
}

// renderCompletion returns a list with one request for each prompt.
func (e *Engine) renderCompletion(w http.ResponseWriter, r *http.Request, body []byte) error {
	req, prompts, err := e.completion(body)
	if err != nil {
		return err
	}
	out := make([]generateRequest, len(prompts))
	for i, ids := range prompts {
		if out[i], err = e.generateRequest(r, "cmpl-", &req.common, ids); err != nil {
			return err
		}
	}
	e.writeJSON(w, out)
	return nil
}

// renderChat returns the request.
func (e *Engine) renderChat(w http.ResponseWriter, r *http.Request, body []byte) error {
	req, ids, err := e.chat(body)
	if err != nil {
		return err
	}
	return e.render(w, r, "chatcmpl-", &req.common, ids)
}

// render returns one request.
func (e *Engine) render(w http.ResponseWriter, r *http.Request, prefix string, c *common, ids []uint32) error {
	out, err := e.generateRequest(r, prefix, c, ids)
	if err != nil {
		return err
	}
	e.writeJSON(w, out)
	return nil
}

// serveTokenize tokenizes a prompt or a chat.
func (e *Engine) serveTokenize(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var req struct {
		Model            string  `json:"model"`
		Prompt           *string `json:"prompt"`
		Messages         any     `json:"messages"`
		AddSpecialTokens *bool   `json:"add_special_tokens"`
		ReturnTokenStrs  bool    `json:"return_token_strs"`
	}
	if err := decode(body, &req); err != nil {
		return err
	}
	if _, err := e.adapter(req.Model); err != nil {
		return err
	}
	if req.Prompt == nil && req.Messages == nil {
		return invalid("body.prompt", "there is neither a prompt nor messages")
	}
	var ids []uint32
	var err error
	if req.Prompt != nil {
		special := req.AddSpecialTokens == nil || *req.AddSpecialTokens
		ids, err = e.tokenize("prompt", *req.Prompt, special)
	} else {
		_, ids, err = e.chat(body)
	}
	if err != nil {
		return err
	}
	var strs []string
	if req.ReturnTokenStrs {
		strs = make([]string, len(ids))
		for i, id := range ids {
			strs[i] = e.cfg.Text.Decode([]uint32{id})
		}
	}
	e.writeJSON(w, map[string]any{
		"count": len(ids), "max_model_len": e.loop.model.Config().MaxModelLen, "tokens": notNil(ids), "token_strs": strs,
	})
	return nil
}

// serveDetokenize is the text of token ids.
func (e *Engine) serveDetokenize(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var req struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	if err := decode(body, &req); err != nil {
		return err
	}
	if req.Tokens == nil {
		return invalid("body.tokens", "tokens are missing")
	}
	if _, err := e.adapter(req.Model); err != nil {
		return err
	}
	e.writeJSON(w, map[string]string{"prompt": e.cfg.Text.Decode(req.Tokens)})
	return nil
}
