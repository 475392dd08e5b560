package render

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

func TestAPromptIsPrefilled(t *testing.T) {
	var body, rank, key string
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body, rank, key = r.URL.Path+" "+string(text), r.Header.Get(rankHeader), r.Header.Get("Authorization")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"error":{"message":"no"}}`))
	}))
	defer server.Close()
	c := New(Options{})
	defer c.Close()
	ep := &endpoint.Endpoint{Address: strings.TrimPrefix(server.URL, "http://"), RankHeader: 3}
	if err := c.Prefill(t.Context(), ep, `m"x`, []uint32{1, 22, 333}, "secret"); err != nil {
		t.Fatal(err)
	}
	if want := `/v1/completions {"model":"m\"x","max_tokens":1,"temperature":0,"prompt":[1,22,333]}`; body != want || rank != "3" || key != "Bearer secret" {
		t.Errorf("%s, rank %s, key %s", body, rank, key)
	}
	status, ep.RankHeader = http.StatusServiceUnavailable, -1
	var refused *StatusError
	if err := c.Prefill(t.Context(), ep, "m", []uint32{1}, ""); !errors.As(err, &refused) || refused.Status != status || rank != "" || key != "" {
		t.Errorf("error %v, rank %q, key %q", err, rank, key)
	}
}
