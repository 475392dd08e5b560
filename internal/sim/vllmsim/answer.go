package vllmsim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// usage is the accounting of an answer; Details is left out when the engine is configured not to report it.
type usage struct {
	Prompt     int           `json:"prompt_tokens"`
	Total      int           `json:"total_tokens"`
	Completion int           `json:"completion_tokens"`
	Details    *usageDetails `json:"prompt_tokens_details,omitempty"`
}

type usageDetails struct {
	Cached int `json:"cached_tokens"`
	// Created are the prompt's tokens that were added to the cache, which newer releases count for chats.
	Created *int `json:"created_cache_tokens,omitempty"`
}

// answer renders one kind of response, plain and streamed.
type answer struct {
	e       *Engine
	id      string
	created int64
	model   string
	chat    bool
	// loadAsked: the client wants the engine's load in a header.
	loadAsked bool
	// generate: the answer is that of /inference/v1/generate.
	generate bool
	req      *common
	prompts  [][]uint32
	streams  []*stream
	loading  loading
}

func (e *Engine) newAnswer(r *http.Request, c *common, prompts [][]uint32, chat bool) (*answer, error) {
	if err := e.checkRank(r); err != nil {
		return nil, err
	}
	transfer := e.transferParams(c, prompts)
	streams, err := e.submitFor(c, prompts, transfer)
	if err != nil {
		return nil, err
	}
	a := &answer{
		e: e, created: time.Now().Unix(), model: c.Model, chat: chat, req: c, prompts: prompts, streams: streams,
		id: e.requestID("cmpl-", r, c), loadAsked: r.Header.Get("Endpoint-Load-Metrics-Format") == "text",
	}
	if chat {
		a.id = e.requestID("chatcmpl-", r, c)
	}
	setDefault(&a.model, e.cfg.ServedModelNames[0])
	return a, a.loading.begin(r.Context(), e, c, transfer, prompts, streams)
}

// serve answers the request; an abort by the client ends it in the engine.
func (a *answer) serve(w http.ResponseWriter, r *http.Request) {
	ended := false
	defer func() { a.loading.end(a.e, a.streams, ended) }()
	if a.req.Stream {
		ended = a.stream(w, r)
		return
	}
	for {
		views, done := a.views()
		if done {
			ended = true
			a.plain(w, views)
			return
		}
		select {
		case <-a.streams[0].ready:
		case <-r.Context().Done():
			return
		}
	}
}

// views returns the state of all streams and whether all have ended.
func (a *answer) views() ([]view, bool) {
	views := make([]view, len(a.streams))
	done := true
	for i, s := range a.streams {
		views[i] = s.view()
		done = done && views[i].finish != ""
	}
	return views, done
}

func (a *answer) usage(views []view) usage {
	var u usage
	cached, n := 0, a.req.choices()
	for i, v := range views {
		if i%n == 0 {
			u.Prompt += len(a.prompts[i/n])
			cached += v.cached
		}
		u.Completion += len(v.tokens)
	}
	u.Total = u.Prompt + u.Completion
	u.Details = a.e.details(a.prompts[0], cached, a.chat)
	if views[0].loaded && u.Details != nil && u.Details.Created != nil {
		*u.Details.Created = 0
	}
	return u
}

// details are what an answer says of the cache: how much of the prompt it had and, for chats, how much was added to it. They are
// nil where the engine says nothing.
func (e *Engine) details(prompt []uint32, cached int, chat bool) *usageDetails {
	release := e.cfg.Release
	if e.cfg.NoPromptTokensDetails || cached == 0 && !release.explicitZero() {
		return nil
	}
	d := &usageDetails{Cached: cached}
	if chat && release.createdCacheTokens() {
		size := e.cfg.BlockSize
		created := max(len(prompt)/size*size-cached, 0)
		d.Created = &created
	}
	return d
}

// prompt is the prompt of choice i.
func (a *answer) prompt(i int) []uint32 { return a.prompts[i/a.req.choices()] }

// text is what choice i shows of tokens, starting at position at.
func (a *answer) text(i, at int, tokens []uint32) string {
	text := a.e.cfg.Text.Decode(tokens)
	if a.req.Echo && !a.chat && at == 0 {
		return a.e.cfg.Text.Decode(a.prompt(i)) + text
	}
	return text
}

// plain writes the entire answer.
func (a *answer) plain(w http.ResponseWriter, views []view) {
	if views[0].finish == finishError {
		a.e.writeError(w, errLoad)
		return
	}
	if a.generate {
		a.writeGenerated(w, views)
		return
	}
	choices := make([]map[string]any, len(views))
	for i, v := range views {
		c := map[string]any{"index": i, "logprobs": nil, "finish_reason": v.finish, "stop_reason": nil}
		text := a.text(i, 0, v.tokens)
		if a.chat {
			c["message"] = map[string]any{"role": "assistant", "content": text}
			if a.e.cfg.Release.emptyToolCalls() {
				c["message"].(map[string]any)["tool_calls"] = []any{}
			}
		} else {
			c["text"] = text
			c["prompt_logprobs"] = nil
		}
		if a.req.ReturnTokenIDs {
			c["token_ids"] = notNil(v.tokens)
			if !a.chat {
				c["prompt_token_ids"] = a.prompt(i)
			}
		}
		choices[i] = c
	}
	out := map[string]any{
		"id": a.id, "object": a.object(false), "created": a.created, "model": a.model, "choices": choices, "usage": a.usage(views),
		"service_tier": nil, "system_fingerprint": nil, "kv_transfer_params": a.e.handed(a.streams[0], views[0], len(a.prompts[0])),
	}
	if a.chat && a.req.ReturnTokenIDs {
		out["prompt_token_ids"] = a.prompts[0]
	}
	if a.loadAsked {
		w.Header().Set("Endpoint-Load-Metrics", a.e.metrics.load())
	}
	a.e.writeJSON(w, out)
}

func (a *answer) object(streamed bool) string {
	switch {
	case !a.chat:
		return "text_completion"
	case streamed:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

// stream writes server-sent events and reports whether it reached the end. The header is sent before the first token, as
// the engine does.
func (a *answer) stream(w http.ResponseWriter, r *http.Request) bool {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	if err := flush.Flush(); err != nil {
		return false
	}
	sent := make([]sentState, len(a.streams))
	var buf []byte
	for {
		views, done := a.views()
		buf = buf[:0]
		failed := views[0].finish == finishError
		for i, v := range views {
			if !failed {
				buf = a.appendNews(buf, i, v, &sent[i])
			}
		}
		switch {
		case failed:
			buf = a.appendError(buf)
		case done:
			buf = a.appendEnd(buf, views)
		}
		if len(buf) > 0 {
			if _, err := w.Write(buf); err != nil {
				return false
			}
			if err := flush.Flush(); err != nil {
				return false
			}
		}
		if done {
			return true
		}
		select {
		case <-a.streams[0].ready:
		case <-r.Context().Done():
			return false
		}
	}
}

// sentState is how much of a choice has been sent.
type sentState struct {
	tokens   int
	begun    bool
	finished bool
}

// appendNews appends the chunks of what is new in choice i.
func (a *answer) appendNews(b []byte, i int, v view, s *sentState) []byte {
	if s.finished || len(v.tokens) == s.tokens && v.finish == "" {
		return b
	}
	if !s.begun && a.chat {
		b = a.appendHead(b, i)
		b = append(b, `"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
		if a.req.ReturnTokenIDs {
			b = append(b, `,"prompt_token_ids":`...)
			b = appendIDs(b, a.prompts[0])
		}
		b = append(append(b, a.runningUsage(i, 0)...), "}\n\n"...)
	}
	fresh := v.tokens[s.tokens:]
	usage := a.runningUsage(i, len(v.tokens))
	b = a.appendHead(b, i)
	text := appendJSONString(nil, a.text(i, s.tokens, fresh))
	if a.chat {
		b = append(append(append(b, `"delta":{"content":`...), text...), '}')
	} else {
		b = append(append(b, `"text":`...), text...)
	}
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if v.finish == "" {
		b = append(b, `null`...)
	} else {
		b = append(append(append(b, '"'), v.finish...), '"')
	}
	b = append(b, `,"stop_reason":null`...)
	if a.req.ReturnTokenIDs {
		b = appendIDs(append(b, `,"token_ids":`...), fresh)
		if !a.chat && !s.begun {
			b = appendIDs(append(b, `,"prompt_token_ids":`...), a.prompt(i))
		}
	}
	b = append(append(append(b, "}]"...), usage...), "}\n\n"...)
	s.begun, s.tokens, s.finished = true, len(v.tokens), v.finish != ""
	return b
}

// runningUsage is the field of a chunk that counts choice i so far, if the request asks for it in each chunk.
func (a *answer) runningUsage(i, tokens int) string {
	if o := a.req.StreamOptions; o == nil || !o.IncludeUsage || !o.ContinuousUsageStats {
		return ""
	}
	prompt := len(a.prompt(i))
	return fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`, prompt, prompt+tokens, tokens)
}

// appendHead begins a chunk up to the index of its choice.
func (a *answer) appendHead(b []byte, i int) []byte {
	b = append(b, `data: {"id":`...)
	b = appendJSONString(b, a.id)
	b = append(append(append(b, `,"object":"`...), a.object(true)...), `","created":`...)
	b = strconv.AppendInt(b, a.created, 10)
	b = append(b, `,"model":`...)
	b = appendJSONString(b, a.model)
	b = append(b, `,"choices":[{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	return append(b, ',')
}

// appendError appends the error of a prompt whose blocks could not be loaded, and the end of the stream.
func (a *answer) appendError(b []byte) []byte {
	text, err := json.Marshal(errLoad.body())
	if err != nil {
		a.e.cfg.Log.Error(err, "Encoding an error failed")
	}
	return append(append(append(b, "data: "...), text...), "\n\ndata: [DONE]\n\n"...)
}

// appendEnd appends the usage, if asked for, and the end of the stream.
func (a *answer) appendEnd(b []byte, views []view) []byte {
	if o := a.req.StreamOptions; o != nil && o.IncludeUsage {
		chunk, err := json.Marshal(map[string]any{
			"id": a.id, "object": a.object(true), "created": a.created, "model": a.model, "choices": []any{}, "usage": a.usage(views),
		})
		if err != nil {
			a.e.cfg.Log.Error(err, "Encoding the usage failed")
		}
		b = append(append(append(b, "data: "...), chunk...), "\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

// appendJSONString appends s quoted. What json.Marshal gives is a fixed point for text that is mostly plain.
func appendJSONString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, err := json.Marshal(s)
			if err != nil { // strings always encode
				return append(b, `""`...)
			}
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

func appendIDs(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

func notNil(ids []uint32) []uint32 {
	if ids == nil {
		return []uint32{}
	}
	return ids
}

func (e *Engine) serveCompletion(w http.ResponseWriter, r *http.Request, body []byte) error {
	if err := e.admit(1); err != nil { // the engine looks at that before it tokenizes
		return err
	}
	req, prompts, err := e.completion(body)
	if err != nil {
		return err
	}
	return e.serveAnswer(w, r, &req.common, prompts, false)
}

func (e *Engine) serveAnswer(w http.ResponseWriter, r *http.Request, c *common, prompts [][]uint32, chat bool) error {
	a, err := e.newAnswer(r, c, prompts, chat)
	if err != nil {
		return err
	}
	a.serve(w, r)
	return nil
}

func (e *Engine) serveChat(w http.ResponseWriter, r *http.Request, body []byte) error {
	if err := e.admit(1); err != nil {
		return err
	}
	req, prompt, err := e.chat(body)
	if err != nil {
		return err
	}
	return e.serveAnswer(w, r, &req.common, [][]uint32{prompt}, true)
}
