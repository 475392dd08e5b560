package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// TestTenantsHaveCachesOfTheirOwn: with a salt for each tenant, engines report hits for prompts of the same tenant only, through
// either of two pickers and through a gateway, and the pickers predict exactly these.
func TestTenantsHaveCachesOfTheirOwn(t *testing.T) {
	pickers, _, gateway := behindGateway(t, 2, vllmsim.Config{SpeedUp: 20})
	f := pickers[0]
	f.write("secrets.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: m-key}\nstringData: {root: root-0123456789abcdef0123456789abcdef}\n")
	f.write("policy.yaml", fmt.Sprintf(policyYAML, "MarginalCost")+`  admission:
    tenants: {identification: Header, headerName: x-tenant, unknown: DefaultClass, cacheSalt: PerTenant, classes: [{name: default}]}
`)
	roads := map[string]string{"the first picker": pickers[0].proxy, "the second picker": pickers[1].proxy, "the gateway": gateway.url}
	ask := func(url, path, tenant string, body any) answer {
		t.Helper()
		payload, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, bytes.NewReader(payload))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Tenant", tenant)
		resp, err := f.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return readAnswer(resp)
	}
	embeddings := map[string]any{"model": "m", "input": "hi"}
	for road, url := range roads {
		f.until(road+" has the policy", func() bool {
			return strings.Contains(ask(url, "/v1/embeddings", "acme", embeddings).body, "cache_salt_unsupported")
		})
	}
	const whole = 320
	for road, url := range roads {
		family := map[string]int{"the first picker": 1, "the second picker": 2, "the gateway": 3}[road]
		prompt := tokens(family, whole+1)
		salted := completion(prompt, 2)
		salted["cache_salt"] = "own"
		for i, one := range []struct {
			tenant string
			body   map[string]any
			want   int
		}{
			{"acme", completion(prompt, 2), 0},
			{"acme", completion(prompt, 2), whole},
			{"small", completion(prompt, 2), 0}, // it learns nothing
			{"small", completion(prompt, 2), whole},
			{"", completion(prompt, 2), 0},
			{"acme", salted, 0},
			{"small", salted, 0},
			{"acme", salted, whole},
			{"acme", completion(prompt, 2), whole},
		} {
			for _, p := range pickers {
				p.untilIndexed(0)
				p.untilIndexed(1)
			}
			a := ask(url, "/v1/completions", one.tenant, one.body)
			if a.status != http.StatusOK || a.cached != one.want || a.predicted != one.want {
				t.Errorf("%s, request %d, of %q: status %d, %d tokens cached, %d predicted, want %d: %.300s", road, i, one.tenant, a.status,
					a.cached, a.predicted, one.want, a.body)
			}
		}
	}
	// On generate, engines report no hits: what they have stored shows the salt.
	chat := map[string]any{"model": "m", "max_tokens": 1, "messages": []any{map[string]any{"role": "user", "content": strings.Repeat("word ", whole)}}}
	generated := make([]uint32, whole)
	for i, id := range tokens(4, whole) {
		generated[i] = uint32(id)
	}
	generate := map[string]any{"model": "m", "token_ids": generated, "sampling_params": map[string]any{"max_tokens": 1}}
	for road, url := range roads {
		for path, body := range map[string]any{"/v1/messages": chat, "/inference/v1/generate": generate} {
			f.until(road+" takes "+path, func() bool { return ask(url, path, "acme", body).status == http.StatusOK })
		}
	}
	root, err := kvblock.NewSeed([]byte("root-0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	stored := 0
	for _, e := range f.engines {
		stored = max(stored, e.Match("", root.TenantSalt("acme", ""), generated))
		if n := e.Match("", "", generated); n != 0 {
			t.Errorf("an engine has %d blocks of generate without a salt", n)
		}
	}
	if stored == 0 {
		t.Error("no engine has blocks of generate for the tenant's salt")
	}
	prompt := tokens(1, whole+1)
	for _, road := range []string{"the second picker", "the gateway"} { // the salts of all pickers are the same
		if a := ask(roads[road], "/v1/completions", "acme", completion(prompt, 2)); a.cached != whole {
			t.Errorf("%s: %d tokens cached, want %d", road, a.cached, whole)
		}
	}
	ids := make([]uint32, len(prompt))
	for i, id := range prompt {
		ids[i] = uint32(id)
	}
	for i, e := range f.engines {
		for _, salt := range []string{"", "own", "acme"} {
			if n := e.Match("", salt, ids); n != 0 {
				t.Errorf("engine %d has %d blocks for the salt %q", i, n, salt)
			}
		}
	}
}
