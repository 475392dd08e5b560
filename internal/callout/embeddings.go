package callout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kvasir-dev/kvasir/internal/respcache"
)

const (
	// maxEmbeddings bounds the answer of an embedding service, in bytes: two vectors of 4,096 dimensions.
	maxEmbeddings = 256 << 10
	// maxEmbeddingCalls is how many calls of one embedding service are under way at most, in one picker.
	maxEmbeddingCalls = 64
)

// Embed returns a vector for each of some texts, by POST /v1/embeddings of the OpenAI API. Vectors are as the service has sent them: all of
// one number of dimensions. Errors are those that respcache names.
func (s *Services) Embed(ctx context.Context, e *respcache.Embeddings, texts ...string) ([][]float32, error) {
	body, err := json.Marshal(map[string]any{"model": e.Model, "input": texts, "encoding_format": "float"})
	if err != nil {
		return nil, err
	}
	text, err := s.call(ctx, &question{
		url: e.URL, key: e.Key, timeout: e.Timeout, body: body, most: maxEmbeddings, calls: maxEmbeddingCalls,
	})
	var busy busyError
	switch {
	case errors.Is(err, errPaused), errors.As(err, &busy):
		return nil, fmt.Errorf("%w: %w", respcache.ErrNotCalled, err)
	case err != nil:
		return nil, err
	}
	vectors, fault := readEmbeddings(text, len(texts))
	if fault != "" {
		return nil, fmt.Errorf("%w: %s", respcache.ErrUnusable, fault)
	}
	return vectors, nil
}

// readEmbeddings reads an answer with n vectors, else it returns what is wrong with it: never its text.
func readEmbeddings(text []byte, n int) (vectors [][]float32, fault string) {
	var answer struct {
		Data []struct {
			Index     *int      `json:"index"`
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
	}
	if json.Unmarshal(text, &answer) != nil {
		return nil, "it is not JSON with lists of numbers in data[].embedding"
	}
	if len(answer.Data) != n {
		return nil, fmt.Sprintf("it has %d vectors for %d texts", len(answer.Data), n)
	}
	vectors = make([][]float32, n)
	for i, d := range answer.Data {
		at := i
		if d.Index != nil {
			at = *d.Index
		}
		switch {
		case at < 0 || at >= n || vectors[at] != nil:
			return nil, "it has an index that is out of range, or twice"
		case len(d.Embedding) == 0 || len(d.Embedding) > respcache.MaxDimensions:
			return nil, fmt.Sprintf("it has a vector of %d dimensions, and at most %d are compared", len(d.Embedding), respcache.MaxDimensions)
		case len(d.Embedding) != len(answer.Data[0].Embedding):
			return nil, "its vectors differ in their dimensions"
		}
		vectors[at] = d.Embedding
	}
	return vectors, ""
}
