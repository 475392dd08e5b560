package vllmsim

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
)

// embeddingSize is the length of embeddings that ask for no other.
const embeddingSize = 64

// pooled runs prompts as an engine with a pooling model does: it reads each one and generates nothing that is shown.
func (e *Engine) pooled(r *http.Request, c *common, prompts [][]uint32) (total int, ok bool, err error) {
	one := number(1)
	c.MaxTokens = &one
	streams, err := e.submit(c, prompts)
	if err != nil {
		return 0, false, err
	}
	for _, s := range streams {
		for s.view().finish == "" {
			select {
			case <-s.ready:
			case <-r.Context().Done():
				for _, s := range streams {
					e.loop.abort(s)
				}
				return 0, false, nil
			}
		}
	}
	for _, p := range prompts {
		total += len(p)
	}
	return total, true, nil
}

func pooledUsage(tokens int) usage { return usage{Prompt: tokens, Total: tokens} }

// embeddedChat is the prompt of messages that are to be embedded: nothing follows them.
func (e *Engine) embeddedChat(body []byte) ([][]uint32, error) {
	fields := map[string]json.RawMessage{}
	if err := decode(body, &fields); err != nil {
		return nil, err
	}
	if _, given := fields["add_generation_prompt"]; !given {
		fields["add_generation_prompt"] = json.RawMessage("false")
	}
	chat, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	_, prompt, err := e.chat(chat)
	return [][]uint32{prompt}, err
}

// serveEmbeddings answers /v1/embeddings: vectors of length one that depend on the tokens alone.
func (e *Engine) serveEmbeddings(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req struct {
		common
		Input      json.RawMessage `json:"input"`
		Messages   json.RawMessage `json:"messages"`
		Format     string          `json:"encoding_format"`
		Dimensions *int            `json:"dimensions"`
	}
	if err := decode(body, &req); err != nil {
		return err
	}
	var prompts [][]uint32
	var err error
	switch {
	case len(req.Messages) > 0:
		prompts, err = e.embeddedChat(body)
	case len(req.Input) == 0:
		err = invalid("body.input", "there is no input")
	default:
		prompts, err = e.prompts("input", req.Input, true)
	}
	if err != nil {
		return err
	}
	size := embeddingSize
	if req.Dimensions != nil {
		size = *req.Dimensions
	}
	switch {
	case size < 1 || size > 4096:
		return badRequest("dimensions", "dimensions must be between 1 and 4096")
	case !slices.Contains([]string{"", "float", "base64"}, req.Format):
		return invalid("body.encoding_format", "encoding_format must be float or base64")
	}
	total, ok, err := e.pooled(r, &req.common, prompts)
	if err != nil || !ok {
		return err
	}
	data := make([]map[string]any, len(prompts))
	for i, p := range prompts {
		var vector any = embedding(p, size)
		if req.Format == "base64" {
			vector = packed(embedding(p, size))
		}
		data[i] = map[string]any{"index": i, "object": "embedding", "embedding": vector}
	}
	e.writeJSON(w, map[string]any{
		"id": e.requestID("embd-", r, &req.common), "object": "list", "created": e.created.Unix(), "model": e.nameOf(req.Model), "data": data,
		"usage": pooledUsage(total),
	})
	return nil
}

// nameOf is the name that an answer to a request for a model has.
func (e *Engine) nameOf(model string) string {
	setDefault(&model, e.cfg.ServedModelNames[0])
	return model
}

// embedding is a vector of length one: each token adds to one of its elements, so that similar prompts are near each other.
func embedding(ids []uint32, size int) []float32 {
	sums, norm := make([]float64, size), 0.0
	for _, id := range ids {
		h := id * 2654435761 // Knuth's multiplicative hash
		sums[int(h>>8)%size] += 1 - 2*float64(h&1)
	}
	for _, x := range sums {
		norm += x * x
	}
	out := make([]float32, size)
	if norm == 0 {
		out[0] = 1
		return out
	}
	for i, x := range sums {
		out[i] = float32(x / math.Sqrt(norm))
	}
	return out
}

// packed is the form of embeddings that SDKs ask for: little-endian floats of 32 bits in base64.
func packed(vector []float32) string {
	var b []byte
	for _, x := range vector {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// similarity is the part of the different words of two texts that both have, 0 to 1.
func similarity(a, b string) float64 {
	in := map[string]int{}
	for _, word := range strings.Fields(strings.ToLower(a)) {
		in[word] |= 1
	}
	for _, word := range strings.Fields(strings.ToLower(b)) {
		in[word] |= 2
	}
	both := 0
	for _, where := range in {
		if where == 3 {
			both++
		}
	}
	return float64(both) / float64(max(len(in), 1))
}

// texts is a text or a list of texts.
type texts []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *texts) UnmarshalJSON(b []byte) error {
	if b[0] == '[' {
		return json.Unmarshal(b, (*[]string)(t))
	}
	var one string
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	*t = texts{one}
	return nil
}

// pairs runs each query and each document as a prompt, as a model of embeddings does, and returns their tokens.
func (e *Engine) pairs(r *http.Request, c *common, queries, documents texts) (total int, ok bool, err error) {
	switch {
	case len(documents) == 0 || len(queries) == 0:
		return 0, false, badRequest("", "a query and a document are needed")
	case len(queries) != 1 && len(queries) != len(documents), len(documents) > maxPrompts:
		return 0, false, badRequest("", "there must be one query, or as many queries as documents")
	}
	prompts := make([][]uint32, len(queries)+len(documents))
	for i, text := range append(slices.Clone(queries), documents...) {
		if prompts[i], err = e.tokenize("documents", text, true); err != nil {
			return 0, false, err
		}
	}
	return e.pooled(r, c, prompts)
}

// serveScore answers /score and /v1/score.
func (e *Engine) serveScore(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req struct {
		common
		Queries   texts `json:"queries"`
		Documents texts `json:"documents"`
		Text1     texts `json:"text_1"`
		Text2     texts `json:"text_2"`
	}
	if err := decode(body, &req); err != nil {
		return err
	}
	if len(req.Queries) == 0 {
		req.Queries = req.Text1
	}
	if len(req.Documents) == 0 {
		req.Documents = req.Text2
	}
	if req.Queries == nil {
		return invalid("body.queries", "there are no queries")
	}
	total, ok, err := e.pairs(r, &req.common, req.Queries, req.Documents)
	if err != nil || !ok {
		return err
	}
	data := make([]map[string]any, len(req.Documents))
	for i, document := range req.Documents {
		data[i] = map[string]any{"index": i, "object": "score", "score": similarity(req.Queries[i%len(req.Queries)], document)}
	}
	e.writeJSON(w, map[string]any{
		"id": e.requestID("score-", r, &req.common), "object": "list", "created": e.created.Unix(), "model": e.nameOf(req.Model), "data": data,
		"usage": pooledUsage(total),
	})
	return nil
}

// serveRerank answers /rerank, /v1/rerank and /v2/rerank: the documents, the most similar to the query first.
func (e *Engine) serveRerank(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req struct {
		common
		Query     string `json:"query"`
		Documents texts  `json:"documents"`
		Top       int    `json:"top_n"`
	}
	if err := decode(body, &req); err != nil {
		return err
	}
	if req.Documents == nil {
		return invalid("body.documents", "there are no documents")
	}
	total, ok, err := e.pairs(r, &req.common, texts{req.Query}, req.Documents)
	if err != nil || !ok {
		return err
	}
	order := make([]int, len(req.Documents))
	for i := range order {
		order[i] = i
	}
	score := func(i int) float64 { return similarity(req.Query, req.Documents[i]) }
	slices.SortStableFunc(order, func(a, b int) int {
		switch x, y := score(a), score(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	if req.Top > 0 {
		order = order[:min(req.Top, len(order))]
	}
	results := make([]map[string]any, len(order))
	for at, i := range order {
		results[at] = map[string]any{"index": i, "document": map[string]any{"text": req.Documents[i]}, "relevance_score": score(i)}
	}
	e.writeJSON(w, map[string]any{
		"id": e.requestID("rerank-", r, &req.common), "model": e.nameOf(req.Model), "results": results,
		"usage": map[string]int{"prompt_tokens": total, "total_tokens": total},
	})
	return nil
}
