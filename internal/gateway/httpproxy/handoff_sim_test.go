package httpproxy

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// completionOf asks for a completion of 20 tokens and returns its text.
func (h *house) completionOf(url string, prompt int) (string, error) {
	body := fmt.Sprintf(`{"model":"m","max_tokens":20,"prompt":[%d`, prompt)
	for i := range 200 {
		body += fmt.Sprintf(",%d", i)
	}
	answer := (&house{t: h.t, url: url}).post("/v1/completions", body+"]}")
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	var out struct {
		Choices []struct {
			Text string `json:"text"`
		} `json:"choices"`
	}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil || answer.StatusCode != 200 || len(out.Choices) != 1 {
		return "", fmt.Errorf("status %d, %w: %.200s", answer.StatusCode, err, text)
	}
	return out.Choices[0].Text, nil
}

// simRoles is a proxy of simulated engines with a connector: one for each role.
func simRoles(t *testing.T, o Options, transfer vllmsim.Transfer, change func(*picker.Spec), roles ...endpoint.Role) (*house, []*vllmsim.Engine) {
	t.Helper()
	var engines []*vllmsim.Engine
	var addresses []string
	transfer.Enabled = true
	for range roles {
		e, err := vllmsim.Start(vllmsim.Config{
			ServedModelNames: []string{"m"}, SpeedUp: 20, Events: vllmsim.EventsConfig{Disabled: true}, Transfer: transfer,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		engines, addresses = append(engines, e), append(addresses, e.Addr())
	}
	s := spec(addresses...)
	for i := range s.Endpoints {
		s.Endpoints[i].Role = roles[i]
	}
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64}
	s.Policy.AnswerHeaders = "Always"
	change(&s)
	return newHouse(t, o, s), engines
}

// Requests of all routes are handed over, and served alone where the blocks cannot be loaded, streamed or not.
func TestAllRoutesAreHandedOver(t *testing.T) {
	words := strings.Repeat("many words ", 100)
	for path, body := range map[string]string{
		"/v1/completions":      `{"model":"m","prompt":"%s` + words + `","max_tokens":9%s}`,
		"/v1/chat/completions": `{"model":"m","messages":[{"role":"user","content":"%s` + words + `"}],"max_tokens":9%s}`,
		"/v1/responses":        `{"model":"m","input":"%s` + words + `","max_output_tokens":9%s}`,
		"/v1/messages":         `{"model":"m","messages":[{"role":"user","content":"%s` + words + `"}],"max_tokens":9%s}`,
	} {
		for _, stream := range []string{"", `,"stream":true`} {
			t.Run(path+stream, func(t *testing.T) {
				h, engines := simRoles(t, Options{}, vllmsim.Transfer{}, func(*picker.Spec) {}, endpoint.Prefill, endpoint.Decode)
				ask := func(first string) {
					t.Helper()
					answer := h.post(path, fmt.Sprintf(body, first, stream))
					text, err := io.ReadAll(answer.Body)
					if err != nil || answer.StatusCode != 200 || strings.Contains(string(text), `"error":{`) || len(text) < 100 {
						t.Errorf("status %d, %v: %s", answer.StatusCode, err, text)
					}
				}
				ask("First ")
				if got := h.handoffs(); got["completed"] != 1 || len(got) != 1 {
					t.Errorf("hand-offs %v", got)
				}
				engines[0].ForgetTransfers()
				ask("Second ")
				if got := h.handoffs(); got["completed"] != 1 || got["decode_failed"] != 1 || len(got) != 2 {
					t.Errorf("hand-offs with an engine that is not the one that has prefilled: %v", got)
				}
			})
		}
	}
}

func TestEnginesThatDieLoseNoHandoff(t *testing.T) {
	var engines []*vllmsim.Engine
	var addresses []string
	start := func(transfer bool) *vllmsim.Engine {
		e, err := vllmsim.Start(vllmsim.Config{
			ServedModelNames: []string{"m"}, SpeedUp: 20, Events: vllmsim.EventsConfig{Disabled: true}, Transfer: vllmsim.Transfer{Enabled: transfer},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	for range 4 {
		engines = append(engines, start(true))
		addresses = append(addresses, engines[len(engines)-1].Addr())
	}
	s := spec(addresses...)
	for i := range s.Endpoints {
		s.Endpoints[i].Role = []endpoint.Role{endpoint.Prefill, endpoint.Decode}[i/2]
	}
	s.Policy.Handoffs = picker.HandoffSpec{Rule: picker.HandoffAbove, UncachedTokens: 64}
	h := newHouse(t, Options{}, s)
	alone := start(false)
	ask := func(first, n int) {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				want, err := h.completionOf(alone.URL(), first+i)
				if err != nil {
					t.Error(err)
				}
				if got, err := h.completionOf(h.url, first+i); err != nil || got != want {
					t.Errorf("%q, %v; want %q", got, err, want)
				}
			})
		}
		all.Wait()
	}
	ask(1000, 20)
	if got := h.handoffs(); got["completed"] != 20 || len(got) != 1 {
		t.Errorf("hand-offs of 20 requests: %v", got)
	}
	for i, dies := range []int{0, 2} { // one that prefills, then one that decodes
		var killed sync.WaitGroup
		killed.Go(func() { engines[dies].Kill() })
		ask(2000*(i+1), 16)
		killed.Wait()
	}
	before := h.handoffs()["completed"]
	ask(9000, 8) // the engine of each role that is left takes them all
	if got := h.handoffs()["completed"]; got != before+8 {
		t.Errorf("%d of 8 hand-offs are completed after two engines have died", got-before)
	}
	got, ended := h.handoffs(), int64(0)
	for outcome, n := range got {
		if outcome != "decode_failed" { // another attempt follows
			ended += n
		}
	}
	if got["completed"] <= 20 || got["client_gone"] != 0 || ended > 60 {
		t.Errorf("hand-offs %v", got)
	}
}
