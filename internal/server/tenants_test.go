package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// keyed asks for two tokens with a tenant's key. It returns the status (0 without an answer) and the part of the answer that
// gives the reason.
func (i *instance) keyed(method, path, key string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	body := ""
	if method == http.MethodPost {
		body = `{"model":"m","prompt":"one two three","max_tokens":2}`
	}
	r, err := http.NewRequestWithContext(ctx, method, url(i.listeners.proxy, path), strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	r.Header.Set("Authorization", "Bearer "+key)
	answer, err := i.client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// secretText is the Secret of tenants, each a line of name, class and keys.
func secretText(tenants ...[]string) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Secret\nmetadata: {name: keys, namespace: default}\nstringData:\n")
	for _, t := range tenants {
		var sums []string
		for _, key := range t[2:] {
			sums = append(sums, fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256([]byte(key)))))
		}
		fmt.Fprintf(&b, "  %s: '{\"class\":%q,\"sha256\":[%s]}'\n", t[0], t[1], strings.Join(sums, ","))
	}
	return b.String()
}

// TestKeysChangeUnderTraffic replaces a tenant's keys in the directory while requests arrive. A client whose key stays valid
// throughout is never refused, a removed key is refused from then on, a new one is accepted, requests in progress end well,
// and a file that cannot be read changes nothing. No key appears in any output.
func TestKeysChangeUnderTraffic(t *testing.T) {
	dir, e := t.TempDir(), engine(t, "m")
	secret := filepath.Join(dir, "keys.yaml")
	other := []string{"other", "gold", "k-of-another"}
	put(t, secret, secretText(other, []string{"acme", "gold", "k-old"}))
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e)+`---
apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m, namespace: default}
spec:
  targetRefs: [{name: m}]
  admission:
    tenants:
      identification: APIKey
      secretRefs: [{name: keys}]
      classes: [{name: default}, {name: gold, models: ["m*"]}, {name: poor, models: [none]}]
`)
	p := runOn(t, dir)
	p.awaitReady()
	const post, completions = http.MethodPost, "/v1/completions"
	refused := func(key string) bool { s, _ := p.keyed(post, completions, key); return s == http.StatusUnauthorized }
	served := func(key string) bool { s, _ := p.keyed(post, completions, key); return s == http.StatusOK }
	p.eventually("the first key is taken", func() bool { return served("k-old") })
	if !refused("k-new") || !refused("") {
		t.Error("a key of no tenant is accepted")
	}

	stop, sent := make(chan struct{}), atomic.Int64{}
	var traffic sync.WaitGroup
	for range 4 {
		traffic.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if status, text := p.keyed(post, completions, "k-of-another"); status != http.StatusOK {
					t.Errorf("a tenant whose key stays gets %d: %s", status, text)
					return
				}
				sent.Add(1)
			}
		})
	}

	// Both keys, so that clients can change theirs.
	put(t, secret, secretText(other, []string{"acme", "gold", "k-old", "k-new"}))
	p.eventually("the new key is taken", func() bool { return served("k-new") })
	if !served("k-old") {
		t.Error("the old key is refused beside the new one")
	}
	// The old one goes while a request with it is under way.
	e.Pause()
	underWay := make(chan int, 1)
	go func() { s, _ := p.keyed(post, completions, "k-old"); underWay <- s }()
	p.eventually("it is under way", func() bool { return requests(e) > 0 })
	put(t, secret, secretText(other, []string{"acme", "gold", "k-new"}))
	p.eventually("the old key is refused", func() bool {
		s, _ := p.keyed(http.MethodGet, "/v1/models", "k-old")
		return s == http.StatusUnauthorized
	})
	e.Resume()
	if s := <-underWay; s != http.StatusOK && s != http.StatusUnauthorized { // it can have arrived too late
		t.Errorf("the request under way ends with %d", s)
	}
	for range 20 {
		if !refused("k-old") || !served("k-new") {
			t.Fatal("a key that was refused is taken again, or the new one is not")
		}
	}
	// A file that cannot be read changes nothing.
	put(t, secret, "kind: [")
	p.eventually("the fault shows", func() bool { return strings.Contains(p.logs.String(), "keys.yaml") })
	if !refused("k-old") || !served("k-new") {
		t.Error("a file that cannot be read changes the accepted keys")
	}
	// Another class is another list of models.
	put(t, secret, secretText(other, []string{"acme", "poor", "k-new"}))
	p.eventually("the class has changed", func() bool { s, _ := p.keyed(post, completions, "k-new"); return s == http.StatusForbidden })
	close(stop)
	traffic.Wait()
	if sent.Load() < 20 {
		t.Errorf("%d requests came meanwhile", sent.Load())
	}
	// Without the Secret no key is accepted.
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	p.eventually("no key is accepted", func() bool { return refused("k-of-another") })
	_, metrics := p.get(p.listeners.metrics, "/metrics")
	if !strings.Contains(metrics, `kvasir_tenant_requests_total{namespace="default",pool="m",tenant="acme"}`) {
		t.Error("the tenant is not counted")
	}
	_, status := p.get(p.listeners.metrics, "/status")
	for what, text := range map[string]string{"metrics": metrics, "status": status, "logs": p.logs.String()} {
		for _, key := range []string{"k-old", "k-new", "k-of-another"} {
			if strings.Contains(text, key) || strings.Contains(text, fmt.Sprintf("%x", sha256.Sum256([]byte(key)))) {
				t.Errorf("%s has a key", what)
			}
		}
	}
}
