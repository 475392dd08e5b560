package render

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// rankHeader names the rank that is to serve a request.
const rankHeader = "X-Data-Parallel-Rank"

// Prefill lets an endpoint compute a prompt of token ids, as a request for one token, so that it has the prompt's blocks.
// It waits for the answer. A refusal is a *StatusError.
func (c *Client) Prefill(ctx context.Context, ep *endpoint.Endpoint, model string, ids []uint32, apiKey string) error {
	name, err := json.Marshal(model)
	if err != nil {
		return err
	}
	var body strings.Builder
	fmt.Fprintf(&body, `{"model":%s,"max_tokens":1,"temperature":0,"prompt":[`, name)
	for i, id := range ids {
		if i > 0 {
			body.WriteByte(',')
		}
		body.WriteString(strconv.FormatUint(uint64(id), 10))
	}
	body.WriteString("]}")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(body.String()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if ep.RankHeader >= 0 {
		req.Header.Set(rankHeader, strconv.Itoa(ep.RankHeader))
	}
	if apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+apiKey)
	}
	resp, err := c.engines.RoundTrip(req, ep)
	if err != nil {
		return fmt.Errorf("prefilling at %s: %w", ep.ID, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxPrefillAnswer))
	if err != nil {
		return fmt.Errorf("prefilling at %s: %w", ep.ID, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("prefilling at %s: %w", ep.ID, &StatusError{resp.StatusCode, messageOf(answer)})
	}
	return nil
}

// maxPrefillAnswer bounds what is read of an answer, bytes; one token takes less.
const maxPrefillAnswer = 64 << 10
