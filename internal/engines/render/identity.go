package render

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Identity is what an engine reports about itself; missing parts are empty.
type Identity struct {
	// Version of the engine.
	Version string
	// Root is where it has the model from.
	Root string
}

// Bounds on the answers about it, in bytes: a list of models can name many adapters. Longer versions and roots count as missing.
// entryCost is the most that an entry of a list takes where it is decoded, however short it is.
const (
	maxIdentity, maxVersion, maxRoot = 1 << 20, 256, 4096
	entryCost                        = 320
)

// Identity asks an endpoint which version it is (/version) and where it has a model from (/v1/models). An error means
// that it does not answer; an engine without these routes is one without an identity.
func (c *Client) Identity(ctx context.Context, ep *endpoint.Endpoint, model, apiKey string) (Identity, error) {
	var version struct{ Version string }
	var models struct {
		Data []struct{ ID, Root string }
	}
	for path, into := range map[string]any{"/version": &version, "/v1/models": &models} {
		if err := c.get(ctx, ep, path, apiKey, into); err != nil {
			return Identity{}, fmt.Errorf("asking %s what it is: %w", ep.ID, err)
		}
	}
	id := Identity{}
	if len(version.Version) <= maxVersion {
		id.Version = version.Version
	}
	for _, m := range models.Data {
		if m.ID == model && len(m.Root) <= maxRoot {
			id.Root = m.Root
		}
	}
	return id, nil
}

// Model asks an endpoint for the name of the model that it serves: the first of its list (/v1/models) that is no adapter.
func (c *Client) Model(ctx context.Context, ep *endpoint.Endpoint, apiKey string) (string, error) {
	var models struct {
		Data []struct {
			ID     string
			Parent *string
		}
	}
	if err := c.get(ctx, ep, "/v1/models", apiKey, &models); err != nil {
		return "", fmt.Errorf("asking %s for its models: %w", ep.Address, err)
	}
	for _, m := range models.Data {
		if m.Parent == nil && m.ID != "" {
			return m.ID, nil
		}
	}
	return "", fmt.Errorf("asking %s for its models: it names none", ep.Address)
}

// get reads a JSON answer. into stays as it is where the route does not exist, or answers in another form.
func (c *Client) get(ctx context.Context, ep *endpoint.Endpoint, path, apiKey string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return err
	}
	if apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+apiKey)
	}
	resp, err := c.engines.RoundTrip(req, ep)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return nil
	case resp.StatusCode != http.StatusOK:
		return &StatusError{Status: resp.StatusCode}
	}
	m := c.shares.open(ep)
	defer m.close()
	var body bytes.Buffer
	if err := m.read(&body, resp.Body, maxIdentity); err != nil {
		return err
	}
	if err := m.take(listCost(body.Bytes())); err != nil {
		return err
	}
	_ = json.Unmarshal(body.Bytes(), into) // another form has no known content
	return nil
}

// listCost is the most that decoding an answer takes, in bytes.
func listCost(answer []byte) int { return 2*len(answer) + entryCost*bytes.Count(answer, []byte(",")) }
