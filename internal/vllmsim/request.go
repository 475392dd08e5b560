package vllmsim

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/kvasir-dev/kvasir/internal/enginemodel"
)

// common is what completions and chat share. Fields that are not here are accepted and ignored.
type common struct {
	Model         string  `json:"model"`
	MaxTokens     *int    `json:"max_tokens"`
	N             *int    `json:"n"`
	Stream        bool    `json:"stream"`
	CacheSalt     *string `json:"cache_salt"`
	Priority      int     `json:"priority"`
	RequestID     string  `json:"request_id"`
	StreamOptions *struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	ReturnTokenIDs  bool            `json:"return_token_ids"`
	KVTransfer      json.RawMessage `json:"kv_transfer_params"`
	maxTokensParam  string
	maxTokensByPlan bool // the length is the simulator's, so the answer ends with "stop"
}

// prompt of a completion: text, token ids, or a list of either.
type completionRequest struct {
	common
	Prompt           json.RawMessage `json:"prompt"`
	Echo             bool            `json:"echo"`
	AddSpecialTokens *bool           `json:"add_special_tokens"`
}

// adapter finds what a model name means: the base model or an adapter with its number.
func (e *Engine) adapter(model string) (name string, id int, err error) {
	if model == "" || slices.Contains(e.cfg.ServedModelNames, model) {
		return "", 0, nil
	}
	if i := slices.Index(e.cfg.LoRAs, model); i >= 0 {
		return model, i + 1, nil
	}
	return "", 0, &apiError{
		status: http.StatusNotFound, kind: "NotFoundError", param: "model", message: fmt.Sprintf("The model `%s` does not exist.", model),
	}
}

// check validates what is common to completions and chat.
func (c *common) check() error {
	switch {
	case c.N != nil && *c.N != 1:
		return badRequest("n", "only n=1 is simulated")
	case c.CacheSalt != nil && *c.CacheSalt == "":
		return badRequest("cache_salt", "cache_salt must be a non-empty string if it is given")
	case c.StreamOptions != nil && !c.Stream:
		return badRequest("stream_options", "stream_options needs stream=true")
	case c.MaxTokens != nil && *c.MaxTokens < 1:
		return badRequest(c.maxTokensParam, fmt.Sprintf("%s is %d, must be at least 1", c.maxTokensParam, *c.MaxTokens))
	}
	return nil
}

// spec describes the request for one prompt to the model. A length that is asked for must fit the context.
func (e *Engine) spec(c *common, prompt []uint32) (enginemodel.Spec, error) {
	name, id, err := e.adapter(c.Model)
	if err != nil {
		return enginemodel.Spec{}, err
	}
	spec := enginemodel.Spec{Prompt: prompt, Adapter: name, AdapterID: id, MaxTokens: *c.MaxTokens}
	if c.CacheSalt != nil {
		spec.Salt = *c.CacheSalt
	}
	limit := e.loop.model.Config().MaxModelLen
	if n := len(prompt); n >= limit || !c.maxTokensByPlan && n+*c.MaxTokens > limit {
		return spec, &enginemodel.ContextError{Max: limit, Prompt: n, Output: *c.MaxTokens}
	}
	return spec, nil
}

// completion reads and checks a completion request and tokenizes its prompts.
func (e *Engine) completion(body []byte) (*completionRequest, [][]uint32, error) {
	req := &completionRequest{}
	if err := decode(body, req); err != nil {
		return nil, nil, err
	}
	if _, _, err := e.adapter(req.Model); err != nil {
		return nil, nil, err
	}
	req.maxTokensParam = "max_tokens"
	if req.MaxTokens == nil {
		d := 16 // the engine's default
		req.MaxTokens = &d
	}
	if err := req.check(); err != nil {
		return nil, nil, err
	}
	if req.Echo {
		return nil, nil, badRequest("echo", "echo is not simulated")
	}
	special := req.AddSpecialTokens == nil || *req.AddSpecialTokens
	prompts, err := e.prompts(req.Prompt, special)
	return req, prompts, err
}

// maxPrompts bounds the prompts of one request.
const maxPrompts = 1024

// prompts tokenizes the four forms of a prompt.
func (e *Engine) prompts(raw json.RawMessage, special bool) ([][]uint32, error) {
	form := ""
	if len(raw) > 0 {
		form = string(raw[0])
	}
	switch {
	case form == `"`:
		var text string
		if err := decode(raw, &text); err != nil {
			return nil, err
		}
		ids, err := e.tokenize("prompt", text, special)
		return [][]uint32{ids}, err
	case form != "[":
		return nil, badRequest("prompt", "prompt must be a string, a list of token ids, or a list of either")
	}
	if ids, ok := parseIDs(raw); ok {
		return [][]uint32{ids}, nil
	}
	var list []json.RawMessage
	if err := decode(raw, &list); err != nil {
		return nil, err
	}
	if len(list) > maxPrompts {
		return nil, badRequest("prompt", fmt.Sprintf("%d prompts, at most %d are accepted", len(list), maxPrompts))
	}
	out := make([][]uint32, 0, len(list))
	for _, one := range list {
		if len(one) == 0 || one[0] != '"' && one[0] != '[' {
			return nil, badRequest("prompt", "token ids must be integers below 2^32")
		}
		if one[0] == '[' {
			ids, ok := parseIDs(one)
			if !ok {
				return nil, badRequest("prompt", "token ids must be integers below 2^32")
			}
			out = append(out, ids)
			continue
		}
		ids, err := e.prompts(one, special)
		if err != nil {
			return nil, err
		}
		out = append(out, ids...)
	}
	return out, nil
}

// tokenize is Text.Encode; its errors are the client's.
func (e *Engine) tokenize(param, text string, special bool) ([]uint32, error) {
	ids, err := e.cfg.Text.Encode(nil, text, special)
	if err != nil {
		return nil, badRequest(param, "tokenizing: "+err.Error())
	}
	return ids, nil
}

// parseIDs reads a JSON list of token ids; an empty list is an empty prompt. It accepts no other number than plain
// integers. The JSON is known to be valid.
func parseIDs(raw []byte) ([]uint32, bool) {
	ids := make([]uint32, 0, len(raw)/4)
	raw = raw[1:]
	for {
		i := 0
		for i < len(raw) && (raw[i] == ' ' || raw[i] == '\t' || raw[i] == '\n' || raw[i] == '\r' || raw[i] == ',') {
			i++
		}
		raw = raw[i:]
		if len(raw) == 0 {
			return nil, false
		}
		if raw[0] == ']' {
			return ids, true
		}
		v, n := uint64(0), 0
		for n < len(raw) && raw[n] >= '0' && raw[n] <= '9' && v <= math.MaxUint32 {
			v = v*10 + uint64(raw[n]-'0')
			n++
		}
		if n == 0 || v > math.MaxUint32 || n < len(raw) && (raw[n] == '.' || raw[n] == 'e' || raw[n] == 'E') {
			return nil, false
		}
		ids, raw = append(ids, uint32(v)), raw[n:]
	}
}

// requestID is the client's, or a new one.
func (e *Engine) requestID(prefix string, r *http.Request, c *common) string {
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = c.RequestID
	}
	if id == "" {
		id = fmt.Sprintf("%08x%s", e.created.UnixNano()&0xffffffff, strconv.FormatUint(e.lastID.Add(1), 36))
	}
	return prefix + id
}

// submit starts a request for each prompt. They share one signal.
func (e *Engine) submit(c *common, prompts [][]uint32) ([]*stream, error) {
	if len(prompts) == 0 {
		return nil, badRequest("prompt", "there is no prompt")
	}
	ready := make(chan struct{}, 1)
	streams := make([]*stream, len(prompts))
	for i, prompt := range prompts {
		spec, err := e.spec(c, prompt)
		if err != nil {
			return nil, err
		}
		req, err := e.loop.model.NewRequest(spec)
		if err != nil {
			return nil, err
		}
		reason := finishLength
		if c.maxTokensByPlan {
			reason = finishStop
		}
		streams[i] = &stream{req: req, reason: reason, ready: ready}
	}
	for _, s := range streams {
		if e.draining.Load() {
			s.show(nil, 0, finishAbort)
			continue
		}
		e.loop.submit(s)
	}
	return streams, nil
}
