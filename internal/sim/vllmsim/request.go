package vllmsim

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// common is what completions and chat share. Fields that are not here are accepted and ignored.
type common struct {
	Model         string  `json:"model"`
	MaxTokens     *number `json:"max_tokens"`
	N             *int    `json:"n"`
	Stream        bool    `json:"stream"`
	CacheSalt     *string `json:"cache_salt"`
	Priority      int     `json:"priority"`
	RequestID     string  `json:"request_id"`
	StreamOptions *struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	Temperature     *float64        `json:"temperature"`
	Truncate        *int            `json:"truncate_prompt_tokens"`
	TruncationSide  string          `json:"truncation_side"`
	ReturnTokenIDs  bool            `json:"return_token_ids"`
	PromptLogprobs  *int            `json:"prompt_logprobs"`
	Echo            bool            `json:"echo"`
	KVTransfer      json.RawMessage `json:"kv_transfer_params"`
	maxTokensParam  string
	maxTokensByPlan bool // the length is the simulator's, so the answer ends with "stop"
	text            bool // the prompt came as text
}

// number is an integer that can also be sent as text, as the engine's parser accepts it.
type number int

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	v, err := strconv.Atoi(strings.Trim(string(b), `"`))
	if err != nil {
		return &json.UnmarshalTypeError{Value: "text", Type: reflect.TypeFor[int]()}
	}
	*n = number(v)
	return nil
}

// prompt of a completion: text, token ids, or a list of either.
type completionRequest struct {
	common
	Prompt           json.RawMessage `json:"prompt"`
	AddSpecialTokens *bool           `json:"add_special_tokens"`
}

// adapter finds what a model name means: the base model, which is no adapter, or an adapter.
func (e *Engine) adapter(model string) (adapter, error) {
	if model == "" || slices.Contains(e.cfg.ServedModelNames, model) {
		return adapter{}, nil
	}
	if a, ok := e.adapters.find(model); ok {
		return a, nil
	}
	if e.cfg.RuntimeLoRA {
		e.adapters.skip() // the engine numbers what it looks up
	}
	return adapter{}, &apiError{
		status: http.StatusNotFound, kind: "NotFoundError", param: "model", message: fmt.Sprintf("The model `%s` does not exist.", model),
	}
}

// check validates what is common to completions and chat.
func (c *common) check() error {
	switch {
	case c.N != nil && (*c.N < 1 || *c.N > maxPrompts):
		return badRequest("", fmt.Sprintf("n is %d, must be between 1 and %d", *c.N, maxPrompts))
	case c.choices() > 1 && c.Temperature != nil && *c.Temperature == 0:
		return badRequest("", "several choices of a greedy answer would be the same")
	case c.Temperature != nil && *c.Temperature < 0:
		return badRequest("temperature", fmt.Sprintf("temperature is %v, must not be negative", *c.Temperature))
	case c.CacheSalt != nil && *c.CacheSalt == "":
		return badRequest("cache_salt", "cache_salt must be a non-empty string if it is given")
	case c.StreamOptions != nil && !c.Stream:
		return badRequest("stream_options", "stream_options needs stream=true")
	case c.MaxTokens != nil && *c.MaxTokens < 1:
		return badRequest(c.maxTokensParam, fmt.Sprintf("%s is %d, must be at least 1", c.maxTokensParam, *c.MaxTokens))
	}
	return nil
}

// spec describes the request for one prompt to the model. An answer that does not fit the context is cut.
func (e *Engine) spec(c *common, prompt []uint32) (enginemodel.Spec, error) {
	tuned, err := e.adapter(c.Model)
	if err != nil {
		return enginemodel.Spec{}, err
	}
	limit := e.loop.model.Config().MaxModelLen
	spec := enginemodel.Spec{
		Prompt: prompt, Adapter: tuned.name, AdapterID: tuned.id, MaxTokens: min(int(*c.MaxTokens), limit-len(prompt)),
		NoLookup: c.PromptLogprobs != nil,
	}
	if c.CacheSalt != nil {
		spec.Salt = *c.CacheSalt
	}
	if e.cfg.Release.hashesPaths() {
		spec.Weights = tuned.path
	}
	if e.cfg.Release.refusesLongAnswers() && !c.maxTokensByPlan && len(prompt)+int(*c.MaxTokens) > limit && len(prompt) < limit {
		param := "input_tokens"
		if c.text && int(*c.MaxTokens) >= limit { // no text is short enough, so that it is not tokenized
			param = "input_text"
		}
		return spec, badRequest(param, fmt.Sprintf("%d tokens of prompt and %d of answer exceed the context of %d", len(prompt), *c.MaxTokens, limit))
	}
	if len(prompt) >= limit {
		return spec, &enginemodel.ContextError{Max: limit, Prompt: len(prompt), Output: int(*c.MaxTokens)}
	}
	for _, id := range prompt {
		if e.cfg.Vocabulary > 0 && id >= e.cfg.Vocabulary {
			return spec, badRequest("", fmt.Sprintf("token id %d is outside the vocabulary", id))
		}
	}
	return spec, nil
}

// truncated keeps as much of a prompt as the request asks for.
func (c *common) truncated(ids []uint32) []uint32 {
	n := len(ids)
	if c.Truncate != nil && *c.Truncate > 0 {
		n = min(n, *c.Truncate)
	}
	if c.TruncationSide == "right" {
		return ids[:n]
	}
	return ids[len(ids)-n:]
}

// completion reads and checks a completion request and tokenizes its prompts.
func (e *Engine) completion(body []byte) (*completionRequest, [][]uint32, error) {
	req := &completionRequest{}
	if err := decode(body, req); err != nil {
		return nil, nil, err
	}
	if _, err := e.adapter(req.Model); err != nil {
		return nil, nil, err
	}
	req.maxTokensParam = "max_tokens"
	if req.MaxTokens == nil {
		d := number(completionTokens)
		req.MaxTokens = &d
	}
	if err := req.check(); err != nil {
		return nil, nil, err
	}
	req.text = len(req.Prompt) > 0 && req.Prompt[0] == '"'
	special := req.AddSpecialTokens == nil || *req.AddSpecialTokens
	prompts, err := e.prompts("prompt", req.Prompt, special)
	if err != nil {
		return nil, nil, err
	}
	for i := range prompts {
		prompts[i] = req.truncated(prompts[i])
		if len(prompts[i]) == 0 && req.text {
			return nil, nil, badRequest("prompt", "the prompt is empty")
		}
	}
	return req, prompts, nil
}

// completionTokens is the engine's own bound of a completion that has none.
const completionTokens = 16

// maxPrompts bounds the prompts of one request.
const maxPrompts = 1024

// prompts tokenizes the four forms of a prompt, which is a field of the body.
func (e *Engine) prompts(field string, raw json.RawMessage, special bool) ([][]uint32, error) {
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
	case form == "" || string(raw) == "null":
		return nil, badRequest("prompt", "there is no prompt")
	case form != "[":
		return nil, invalid("body."+field, field+" must be a string, a list of token ids, or a list of either")
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
	wrong := func(i int) error {
		return invalid("body."+field+"."+strconv.Itoa(i), "prompts are texts, or lists of integers below 2^32, or one such list")
	}
	if isID(list[0]) {
		return nil, wrong(slices.IndexFunc(list, func(one json.RawMessage) bool { return !isID(one) }))
	}
	for i, one := range list {
		if one[0] == '[' {
			ids, ok := parseIDs(one)
			if !ok {
				return nil, wrong(i)
			}
			out = append(out, ids)
			continue
		}
		if one[0] != '"' {
			return nil, wrong(i)
		}
		ids, err := e.prompts(field, one, special)
		if err != nil {
			return nil, err
		}
		out = append(out, ids...)
	}
	return out, nil
}

// isID reports whether a JSON value is a token id.
func isID(raw json.RawMessage) bool {
	_, ok := parseIDs([]byte("[" + string(raw) + "]"))
	return ok
}

// renders refuses to make tokens of a text in an engine that shuts down: it stops its renderer first, and takes requests
// for as long as running ones take.
func (e *Engine) renders() error {
	if e.draining.Load() {
		return errors.New("the renderer has been shut down")
	}
	return nil
}

// tokenize is Text.Encode; its errors are the client's.
func (e *Engine) tokenize(param, text string, special bool) ([]uint32, error) {
	if err := e.renders(); err != nil {
		return nil, err
	}
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

// submit starts as many requests for each prompt as choices are asked for. They share one signal.
func (e *Engine) submit(c *common, prompts [][]uint32) ([]*stream, error) {
	return e.submitFor(c, prompts, nil)
}

// submitFor is submit for a request that hands blocks to another engine, or gets them from one: the latter is not started.
func (e *Engine) submitFor(c *common, prompts [][]uint32, transfer *transferParams) ([]*stream, error) {
	if len(prompts) == 0 {
		return nil, badRequest("prompt", "there is no prompt")
	}
	if e.transfers.fails(transfer) {
		return nil, errLoad
	}
	ready := make(chan struct{}, 1)
	streams := make([]*stream, 0, len(prompts)*c.choices())
	for _, prompt := range prompts {
		for range c.choices() {
			spec, err := e.spec(c, slices.Clip(prompt))
			if err != nil {
				return nil, err
			}
			holds := ""
			if transfer != nil && transfer.RemoteDecode {
				spec.Hold, holds = true, cmp.Or(transfer.holdAs, "held-"+strconv.FormatUint(e.lastID.Add(1), 36))
			}
			req, err := e.loop.model.NewRequest(spec)
			if err != nil {
				return nil, err
			}
			reason := finishLength
			if c.maxTokensByPlan {
				reason = finishStop
			}
			streams = append(streams, &stream{req: req, reason: reason, holds: holds, ready: ready})
		}
	}
	if err := e.admit(len(streams)); err != nil {
		return nil, err
	}
	for _, s := range streams {
		if e.draining.Load() {
			s.show(nil, 0, finishAbort)
			continue
		}
		if transfer != nil && transfer.loads() {
			continue
		}
		e.loop.submit(s)
	}
	return streams, nil
}

// choices is the number of answers to each prompt.
func (c *common) choices() int {
	if c.N == nil {
		return 1
	}
	return *c.N
}

// admit refuses n requests when more than allowed would be inside the engine then. As in vLLM the bound is not exact:
// requests that are looked at at the same time do not see one another.
func (e *Engine) admit(n int) error {
	limit, live := e.cfg.MaxQueuedRequests, 0
	if limit == 0 || !e.loop.call(func() { live = e.loop.live }) || live+n <= limit {
		return nil
	}
	e.metrics.reject()
	return &apiError{
		status: http.StatusServiceUnavailable, kind: http.StatusText(http.StatusServiceUnavailable),
		message: "The engine has as many requests as it takes.",
	}
}
