package e2e

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

const (
	// What must not appear in any output. The texts are such that nothing else is spelled alike.
	secretPrompt  = "zanzibarquux the merger is called off"
	secretSystem  = "wolpertinger you are a lawyer"
	secretSession = "session-okapihorn-17"
	secretUser    = "somebody-yaffingale"
	secretKey     = "sk-narwhaltooth-0123456789abcdef"
	secretEngine  = "engine-pangolinkey-0123456789"
	secretSalt    = "salt-quokkapaw"
	secretRoot    = "root-axolotlgill-0123456789abcdef01234567"
	secretTool    = "tool_jackalopefoot"
	secretRequest = "tatzelwurm is no correlation id"
	// openRequest is an id of a request that logs can have.
	openRequest = "request-of-gateway.or:client_1"
	// secretTokens are ids of a prompt, as they would be written.
	secretTokens = "77001,77002,77003,77004"
)

// TestNothingIsToldOfRequests sends requests with known words in all their parts, valid ones and failing ones, to the proxy
// and through a gateway, to a picker with the most verbose log; then it searches for the words in all output of the picker, also of its
// crash, which leaves no core to search.
func TestNothingIsToldOfRequests(t *testing.T) {
	log, usage, extProc, crashed := t.TempDir(), t.TempDir(), freeAddress(t), t.TempDir()
	spans, exported := collector(t), collector(t)
	f := newFleetWith(t, 2, vllmsim.Config{SpeedUp: 20}, "MarginalCost", func(f *fleet) {
		f.args = append(f.args, "--log-level", "trace", "--decision-log", log, "--usage-log", usage, "--ext-proc-address", extProc, "--ext-proc-plaintext",
			"--tracing-endpoint", spans.url, "--tracing-ratio", "1", "--usage-endpoint", exported.url)
		f.env = []string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_EXPORTER_OTLP_COMPRESSION=none", "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_BLRP_SCHEDULE_DELAY=100", "GOTRACEBACK=crash"}
		f.confine = func(picker *exec.Cmd) { leaveCores(picker, crashed) }
		sum := sha256.Sum256([]byte(secretKey))
		f.write("pool.yaml", strings.Replace(poolYAML, "  selector:", "  engine: {apiKey: {name: engine, key: token}}\n  keySpace: {secretRef: {name: root}}\n  selector:", 1))
		f.write("policy.yaml", strings.Replace(fmt.Sprintf(policyYAML, "MarginalCost"), "  decisions: {answerHeaders: Always}", `  decisions: {answerHeaders: Always, logPercent: 100}
  session: {keys: [{type: Header, name: x-session-id}, {type: BodyField, name: user}]}
  responseCache:
    type: Semantic
    semantic: {embeddings: {url: 'http://127.0.0.1:1/v1/embeddings', model: e, keySecretRef: {name: engine, key: token}}}
    store: {redis: {url: 'redis://127.0.0.1:1', passwordSecretRef: {name: engine, key: token}}}
  admission:
    tenants:
      identification: APIKey
      unknown: Reject
      cacheSalt: PerTenant
      secretRefs: [{name: tenants}]
      classes: [{name: default}]`, 1))
		f.write("secrets.yaml", fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: tenants}
stringData: {acme: '{"class":"default","sha256":["%s"]}'}
---
apiVersion: v1
kind: Secret
metadata: {name: engine}
stringData: {token: %s}
---
apiVersion: v1
kind: Secret
metadata: {name: root}
stringData: {root: %s}
`, hex.EncodeToString(sum[:]), secretEngine, secretRoot))
	})
	gateway := behindAllowing(t, []string{"traceparent", "tracestate"}, extProc)
	follow := f.follow()
	message := map[string]any{"role": "user", "content": secretPrompt + strings.Repeat(" and so on", 40)}
	chat := map[string]any{
		"model": "m", "max_tokens": 4, "stream": true, "user": secretUser, "cache_salt": secretSalt,
		"messages": []any{map[string]any{"role": "system", "content": secretSystem}, message},
	}
	tools := map[string]any{"model": "m", "max_tokens": 4, "messages": []any{message}, "tools": []any{map[string]any{
		"type": "function", "function": map[string]any{"name": secretTool, "parameters": map[string]any{}},
	}}}
	served := 0
	for road, url := range map[string]string{"the proxy": f.proxy, "the gateway": gateway.url, "the proxy again": f.proxy} {
		statuses := map[int]int{}
		for _, one := range []struct {
			path, key string
			body      any
		}{
			{"/v1/chat/completions", secretKey, chat},
			{"/v1/chat/completions", secretKey, tools},
			{"/v1/completions", secretKey, map[string]any{"model": "m", "prompt": secretPrompt, "max_tokens": 2}},
			{"/v1/completions", secretKey, json.RawMessage(`{"model":"m","max_tokens":2,"prompt":[` + secretTokens + strings.Repeat(","+secretTokens, 40) + `]}`)},
			{"/v1/completions", secretKey + "-wrong", chat},                                                         // 401
			{"/v1/completions", secretKey, map[string]any{"model": "m", "prompt": map[string]any{secretPrompt: 1}}}, // cannot be read
			{"/v1/completions", secretKey, json.RawMessage(`"` + secretPrompt + `"`)},
			{"/v1/chat/completions", secretKey, map[string]any{"model": "m", "messages": secretPrompt}},
			{"/v1/embeddings", secretKey, map[string]any{"model": "m", "input": secretPrompt}},
			{"/v1/unknown/" + secretSession, secretKey, chat},
		} {
			statuses[f.confide(url+one.path, one.key, one.body)]++
		}
		for _, status := range []int{200, 400, 401} {
			if statuses[status] == 0 {
				t.Fatalf("%s: no answer with %d: %v", road, status, statuses)
			}
		}
		served += statuses[200]
	}
	// The response cache holds the answer, and its key is made of the whole request.
	again := map[string]any{"model": "m", "temperature": 0, "max_tokens": 2, "prompt": secretPrompt}
	for range 2 {
		if status := f.confide(f.proxy+"/v1/completions", secretKey, again); status != http.StatusOK {
			t.Errorf("a request that can be answered from the cache: %d", status)
		}
		served++
		f.until("the answer is in the response cache", func() bool { return f.metric("kvasir_response_cache_entries") > 0 })
	}
	similar := map[string]any{"model": "m", "temperature": 0, "max_tokens": 2, "messages": []any{map[string]any{"role": "user", "content": secretPrompt}}}
	for range 7 { // until the services are left alone, which is logged
		if f.confide(f.proxy+"/v1/chat/completions", secretKey, similar) == http.StatusOK {
			served++
		}
		similar["max_tokens"] = similar["max_tokens"].(int) + 1
	}
	if f.metric("kvasir_response_cache_embeddings_total", `result="not_called"`) == 0 || f.metric("kvasir_response_cache_store_total", `result="not_called"`) == 0 {
		t.Error("no failure of a service is logged")
	}
	hits := f.metric("kvasir_response_cache_requests_total", `result="hit"`)
	if hits == 0 {
		t.Error("no request is answered from the response cache")
	}
	served -= int(hits) // there is no score, and there are no spans of one
	// An engine that has died makes the picker log attempts, retries and circuits.
	f.engines[1].Kill()
	for range 4 {
		for road, url := range map[string]string{"the proxy": f.proxy, "the gateway": gateway.url} {
			if status := f.confide(url+"/v1/chat/completions", secretKey, chat); status == http.StatusOK {
				served++
			} else if road == "the proxy" {
				t.Errorf("%s: status %d after an engine was killed", road, status)
			}
		}
	}
	body, err := json.Marshal(chat)
	if err != nil {
		t.Fatal(err)
	}
	explained, err := f.client.Post(f.metrics+"/explain", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	explanation, err := io.ReadAll(explained.Body)
	if err != nil || explained.StatusCode != http.StatusOK {
		t.Fatalf("%d %v: %s", explained.StatusCode, err, explanation)
	}
	_ = explained.Body.Close()
	told := map[string]string{"/explain": string(explanation), "/decisions?follow=1": follow()}
	for _, path := range []string{"/", "/metrics", "/status", "/status?output=json", "/decisions?limit=512", "/prefixes?limit=100"} {
		status, text := f.get(f.metrics + path)
		if status != http.StatusOK || text == "" {
			t.Errorf("%s: %d", path, status)
		}
		told[path] = text
	}
	f.until("the decision log is written", func() bool {
		text, err := os.ReadFile(filepath.Join(log, "decisions.jsonl"))
		told["the decision log"] = string(text)
		return err == nil && strings.Count(told["the decision log"], "\n") >= served
	})
	f.until("the usage log is written", func() bool {
		text, err := os.ReadFile(filepath.Join(usage, "usage.jsonl"))
		told["the usage log"] = string(text)
		return err == nil && strings.Count(told["the usage log"], `"outcome":"completed"`) >= served
	})
	for _, want := range []string{`"entrance":"proxy"`, `"entrance":"gateway"`, `"tenant":"acme"`, `"outcome":"refused"`, `"reason":"unreadable"`} {
		if !strings.Contains(told["the usage log"], want) {
			t.Errorf("the usage log has no record with %s: %s", want, told["the usage log"])
		}
	}
	f.until("the usage is exported", func() bool {
		told["the exported usage"] = exported.text()
		return strings.Count(told["the exported usage"], "completed") >= served
	})
	told["the archive of sysdump"] = f.sysdump()
	f.until("all requests have spans", func() bool {
		told["the spans"] = spans.text()
		return strings.Count(told["the spans"], "kvasir.score") >= served
	})
	f.crash(crashed)
	if told["the log"] = f.logs.String(); !strings.Contains(told["the log"], "goroutine ") {
		t.Error("the picker did not write its traces when it crashed")
	}
	if !strings.Contains(told["the log"], "Picked") || !strings.Contains(told["/decisions?limit=512"], `"outcome":"completed"`) {
		t.Errorf("it tells less than it might: %s", told["the log"])
	}
	for _, where := range []string{"the log", "the decision log", "the usage log", "/decisions?limit=512"} {
		if !strings.Contains(told[where], openRequest) {
			t.Errorf("%s does not name the request %s", where, openRequest)
		}
	}
	if !strings.Contains(told["the log"], "Request refused") {
		t.Error("refusals are not in the log")
	}
	root, err := kvblock.NewSeed([]byte(secretRoot))
	if err != nil {
		t.Fatal(err)
	}
	acme, acmeOwn := root.TenantSalt("acme", ""), root.TenantSalt("acme", secretSalt)
	expectNoSecrets(t, told,
		"zanzibarquux", "wolpertinger", "okapihorn", "yaffingale", "narwhaltooth", "pangolinkey", "quokkapaw", "axolotlgill", "jackalopefoot",
		"tatzelwurm", acme, acmeOwn,
		secretTokens, "77001 77002", "77001, 77002", base64.StdEncoding.EncodeToString([]byte(secretEngine))[:20], base64.StdEncoding.EncodeToString([]byte(secretRoot))[:20])
}

// leaveCores makes a command write a core, of any size that the system allows, into a directory if it crashes and does not forbid it.
func leaveCores(c *exec.Cmd, dir string) {
	c.Args = append([]string{"sh", "-c", `ulimit -c "$(ulimit -H -c)"; exec "$0" "$@"`, c.Path}, c.Args[1:]...)
	c.Path, c.Dir = "/bin/sh", dir
}

// crash ends the picker as a fault in its runtime does, with the traces of all goroutines. Neither a file nor a program that collects cores
// gets one of it, though the limits of its parent allow that and others get one.
func (f *fleet) crash(dir string) {
	f.t.Helper()
	if err := f.picker.Process.Signal(syscall.SIGABRT); err != nil {
		f.t.Fatal(err)
	}
	select {
	case <-f.exited:
	case <-time.After(patience):
		f.t.Fatal("the picker did not end on SIGABRT")
	}
	end := f.picker.ProcessState.Sys().(syscall.WaitStatus)
	if !end.Signaled() || end.CoreDump() {
		f.t.Errorf("the end of the picker: by a signal %v, with a core %v", end.Signaled(), end.CoreDump())
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		f.t.Errorf("the crash left %v: %v", files, err)
	}
	other := exec.Command("/bin/sh", "-c", "kill -ABRT $$")
	leaveCores(other, f.t.TempDir())
	_ = other.Run() // it is killed
	if !other.ProcessState.Sys().(syscall.WaitStatus).CoreDump() {
		f.t.Log("NOT RUN: this machine writes no cores at all")
	}
}

// spanCollector keeps what it receives of spans, as bytes: texts in them are as they are.
type spanCollector struct {
	url string
	mu  sync.Mutex
	all strings.Builder // guarded by mu
}

func (c *spanCollector) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.String()
}

func collector(t *testing.T) *spanCollector {
	t.Helper()
	c := &spanCollector{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Encoding") != "" {
			t.Errorf("spans that cannot be read: %v %v", err, r.Header)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all.Write(body)
	}))
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// sysdump is the content of the archive for a bug report.
func (f *fleet) sysdump() string {
	f.t.Helper()
	zip, err := gzip.NewReader(strings.NewReader(f.ran("sysdump", "--file", "-")))
	if err != nil {
		f.t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil || !strings.Contains(string(text), "decisions.jsonl") || !strings.Contains(string(text), `"outcome":"completed"`) {
		f.t.Fatalf("%v: the archive lacks the decisions: %s", err, text)
	}
	return string(text)
}

// expectNoSecrets fails if a text has one of the secrets.
func expectNoSecrets(t *testing.T, texts map[string]string, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		for where, text := range texts {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("%s contains %q: %s", where, secret, text[max(0, at-100):min(len(text), at+100)])
			}
		}
	}
}

// confide sends a request with a tenant's key, and gives the answer's status.
func (f *fleet) confide(url, key string, body any) int {
	f.t.Helper()
	payload, err := json.Marshal(body)
	if err != nil {
		f.t.Fatal(err)
	}
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(string(payload)))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("X-Session-Id", secretSession)
	r.Header.Set("X-Request-Id", secretRequest)
	if key == secretKey+"-wrong" || strings.HasSuffix(url, "/v1/completions") {
		r.Header.Set("X-Request-Id", openRequest)
	}
	resp, err := f.client.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// follow reads decisions until what it returns is called, which gives all of them.
func (f *fleet) follow() func() string {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.metrics+"/decisions?follow=1&limit=1", http.NoBody)
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := f.client.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	text := make(chan string)
	go func() {
		all, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		text <- string(all)
	}()
	return func() string { cancel(); return <-text }
}
