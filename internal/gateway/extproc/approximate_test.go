package extproc

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/policy"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// TestApproximatePrefixKeepsConversationsTogether: engines without events or tokens, conversations that take turns.
func TestApproximatePrefixKeepsConversationsTogether(t *testing.T) {
	engines := make([]string, 4)
	for i := range engines {
		engines[i] = engine(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"engine":"%d"}`, i)
		})
	}
	s := spec(engines...)
	s.Policy.Strategy = policy.Default(policy.ApproximatePrefix)
	h := newHouse(t, Options{}, ServeOptions{}, s)
	g := h.envoy(envoytest.Options{})
	homes := map[int]string{}
	used := map[string]bool{}
	for turn := range 4 {
		for c := range 12 {
			var messages []string
			for n := range 2*turn + 1 {
				text := strings.Repeat(fmt.Sprintf("conversation %d, message %d. ", c, n), 20)
				messages = append(messages, fmt.Sprintf(`{"role":%q,"content":%q}`, []string{"user", "assistant"}[n%2], text))
			}
			answer := g.post("/v1/chat/completions", fmt.Sprintf(`{"model":"m","messages":[%s]}`, strings.Join(messages, ",")))
			text, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != http.StatusOK {
				t.Fatalf("%d: %v", answer.StatusCode, err)
			}
			by := string(text)
			if turn > 0 && by != homes[c] {
				t.Errorf("turn %d of conversation %d was answered by %s, the one before by %s", turn, c, by, homes[c])
			}
			homes[c], used[by] = by, true
		}
	}
	if len(used) < 2 {
		t.Errorf("12 conversations all went to %v", used)
	}
}
