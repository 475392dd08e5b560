package picker

import (
	"context"
	"crypto/sha256"
	"errors"
	"strconv"
	"strings"
	"unicode"

	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// SimilarSpec defines which requests are answered with the answers to similar ones.
type SimilarSpec struct {
	// Embeddings make the vectors that are compared; without a URL, only equal requests are answered.
	Embeddings respcache.Embeddings
	// Least similarity of the questions, up to 1.
	Least float64
	// Missing is why the service cannot be called, although there is one; empty for nothing.
	Missing string
}

// Embedder makes vectors of texts. It is safe for concurrent use.
type Embedder interface {
	// Embed returns a vector for each text. Its errors are those that respcache names, and have nothing of the texts.
	Embed(ctx context.Context, e *respcache.Embeddings, texts ...string) ([][]float32, error)
}

// SimilarityHeader is the header by which answers to similar requests say how similar the other request was.
const SimilarityHeader = "x-kvasir-cache-similarity"

// maxQuestion is the longest question that is compared by similarity, in bytes: in longer ones a word that changes the answer changes
// the vector too little.
const maxQuestion = 4 << 10

// similar looks for the answer to a similar request. likeness is by what the answer of the engine is to be found, nil for nothing. Whatever
// the embedding service does, the request goes on, at latest after the time limit of the call.
func (p *Picker) similar(ctx context.Context, v *view, in *Request, r *openai.Request, c *caller, wish *cacheWish,
) (a *respcache.Answer, similarity float64, likeness *respcache.Likeness) {
	spec := &v.spec.Policy.Responses.Similar
	if !v.compares(wish) || p.options.Embeddings == nil {
		return nil, 0, nil
	}
	group, text, ok := v.questionOf(in, r, c)
	if !ok {
		return nil, 0, nil
	}
	if spec.Missing != "" {
		v.responses.CountEmbedding(p.now(), respcache.EmbeddingNotCalled, spec.Missing)
		return nil, 0, nil
	}
	vector, mark, ok := p.embed(ctx, v, text)
	if !ok {
		return nil, 0, nil
	}
	likeness = v.cache.Likeness(group, vector, mark)
	a, similarity, _ = v.cache.Similar(p.now(), likeness, spec.Least, wish.maxAge)
	return a, similarity, likeness
}

// compares reports whether requests with a wish are compared by similarity.
func (v *view) compares(wish *cacheWish) bool {
	return v.spec.Policy.Responses.Similar.Embeddings.URL != "" && !wish.exact && wish.maxAge != 0
}

// comparesRequest reports whether a request would be compared by similarity.
func (v *view) comparesRequest(in *Request, r *openai.Request, c *caller, wish *cacheWish) bool {
	if !v.compares(wish) {
		return false
	}
	_, _, ok := v.questionOf(in, r, c)
	return ok
}

// embed returns the vectors of a text and of respcache.Mark. ok is false if the text cannot be compared, which is counted.
func (p *Picker) embed(ctx context.Context, v *view, text string) (vector, mark respcache.Vector, ok bool) {
	spec := &v.spec.Policy.Responses.Similar
	raw, err := p.options.Embeddings.Embed(ctx, &spec.Embeddings, text, respcache.Mark)
	switch {
	case err == nil:
	case ctx.Err() != nil: // the client has gone
		return nil, nil, false
	case errors.Is(err, respcache.ErrNotCalled):
		v.responses.CountEmbedding(p.now(), respcache.EmbeddingNotCalled, err.Error())
		return nil, nil, false
	case errors.Is(err, respcache.ErrUnusable):
		v.responses.CountEmbedding(p.now(), respcache.EmbeddingUnusable, err.Error())
		return nil, nil, false
	default:
		v.responses.CountEmbedding(p.now(), respcache.EmbeddingFailed, err.Error())
		return nil, nil, false
	}
	vector, one := respcache.NewVector(raw[0])
	mark, other := respcache.NewVector(raw[1])
	switch {
	case !one || !other:
		v.responses.CountEmbedding(p.now(), respcache.EmbeddingUnusable, "the embedding service has sent a vector without a direction")
		return nil, nil, false
	case respcache.Similarity(vector, mark) >= spec.Least:
		v.responses.CountEmbedding(p.now(), respcache.EmbeddingAlike,
			"the embedding service finds a question similar to a text that has nothing to do with it: use another model, "+
				"or a higher minSimilarityPercent")
		return nil, nil, false
	}
	v.responses.CountEmbedding(p.now(), respcache.Embedded, "")
	return vector, mark, true
}

// revealing are fields by which an answer has something of its prompt in it.
var revealing = []string{"prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids", "echo"}

// questionOf returns the text by which a request is compared with similar ones, and the name of all else, which must be equal: what
// responseKey has, but the text; and the numbers in the text. Where the policy distinguishes no tenants, clients with other keys are apart,
// so that none of them can put answers before another one. ok is false for requests that are compared as a whole.
func (v *view) questionOf(in *Request, r *openai.Request, c *caller) (group respcache.Key, text string, ok bool) {
	for _, name := range revealing {
		if value, known := r.Raw(name); value != nil || !known {
			return group, "", false
		}
	}
	q, ok := r.Question(maxQuestion)
	if !ok {
		return group, "", false
	}
	h := sha256.New()
	write(h, "similar")
	v.writeAround(h, in, r, c)
	if c.name == "" {
		for _, name := range [...]string{"Authorization", "X-Api-Key"} {
			write(h, strconv.Itoa(len(in.Headers[name])))
			write(h, in.Headers[name]...)
		}
	}
	numbers := numbersIn(q.Text)
	write(h, strconv.Itoa(len(numbers)))
	write(h, numbers...)
	if !r.WriteCanonicalWithout(h, &q) {
		return group, "", false
	}
	h.Sum(group[:0])
	return group, q.Text, true
}

// numbersIn are the numbers of a text, as they are written, with the signs at and between them: -5 is not 5, 1.5 is neither 15 nor 1/5, and
// 7 - 3 is not 7 + 3. What ends a sentence or is around a part of it belongs to no number.
func numbersIn(text string) (all []string) {
	for run := range strings.FieldsFuncSeq(text, func(c rune) bool { return !unicode.In(c, unicode.N, unicode.P, unicode.S, unicode.Z) }) {
		if strings.ContainsFunc(run, unicode.IsNumber) {
			run = strings.TrimFunc(run, func(c rune) bool {
				return !unicode.In(c, unicode.N, unicode.Sm, unicode.Sc, unicode.Pd) && !strings.ContainsRune("*/%^#°", c)
			})
			all = append(all, strings.Join(strings.Fields(run), " "))
		}
	}
	return all
}
