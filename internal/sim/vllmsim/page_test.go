package vllmsim

import (
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// TestTheSimulatorServesWhatItsPageSays: of the routes that clients of a picker can use, vllmsim serves all but those that
// docs/simulator.md lists.
func TestTheSimulatorServesWhatItsPageSays(t *testing.T) {
	// Below /v1/ all paths pass; these are the ones that vLLM 0.32 has for clients, without those under Generate's gate.
	paths := append(openai.ClientPaths(), "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages",
		"/v1/messages/count_tokens", "/v1/embeddings", "/v1/score", "/v1/rerank", "/v1/audio/transcriptions", "/v1/audio/translations")
	e, err := Start(Config{ServedModelNames: []string{"m"}, SpeedUp: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	var lacking []string
	for _, path := range paths {
		resp, err := http.Post("http://"+e.Addr()+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusNotFound {
			lacking = append(lacking, path)
		}
	}
	page, err := os.ReadFile("../../../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	sentence := regexp.MustCompile(`(?s)It does not serve (.*?)\.\s`).FindSubmatch(page)
	if sentence == nil {
		t.Fatal("the page does not list what is not served")
	}
	var listed []string
	for _, name := range regexp.MustCompile("`(/[^`]+)`").FindAllSubmatch(sentence[1], -1) {
		listed = append(listed, string(name[1]))
	}
	slices.Sort(lacking)
	slices.Sort(listed)
	if diff := cmp.Diff(lacking, listed); diff != "" {
		t.Errorf("not served (-), and listed as such (+):\n%s", diff)
	}
}
