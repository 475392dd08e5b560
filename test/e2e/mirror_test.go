package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const mirrorRoute = `apiVersion: kvasir.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec:
  models: [chat]
  rules:
  - backends: [{pool: llama}]
`

// turnOf asks for a turn of a session, and returns its answer without what differs between any two answers.
func (m *manyModels) turnOf(session int) (status int, answer map[string]any, err error) {
	prompt := make([]int, 200)
	for i := range prompt {
		prompt[i] = session*1000 + i
	}
	payload, err := json.Marshal(map[string]any{"model": "chat", "prompt": prompt, "max_tokens": 8, "temperature": 0})
	if err != nil {
		return 0, nil, err
	}
	r, err := http.NewRequest(http.MethodPost, m.proxy+"/v1/completions", bytes.NewReader(payload))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("X-Session-Id", fmt.Sprint("session-", session))
	resp, err := m.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		return 0, nil, fmt.Errorf("%w: %s", err, b)
	}
	for _, name := range []string{"id", "created", "usage"} { // usage has what was cached
		delete(answer, name)
	}
	return resp.StatusCode, answer, nil
}

// TestAMirrorUnderLoad of real engines: they serve copies, stop, go on, and are killed. The clients' answers are those without a mirror all the
// while, and a picker that ends does not wait for its copies.
func TestAMirrorUnderLoad(t *testing.T) {
	m := startManyModels(t, map[string]string{"route.yaml": mirrorRoute})
	const sessions = 4
	var want [sessions]map[string]any
	for i := range want {
		status, answer, err := m.turnOf(i)
		if err != nil || status != http.StatusOK {
			t.Fatal(status, answer, err)
		}
		want[i] = answer
	}
	m.write("route.yaml", mirrorRoute+"    mirrors: [{pool: llama-next}]\n")
	m.until("the route mirrors", func() bool {
		_, _, err := m.turnOf(0)
		return err == nil && m.mirrored("sent") > 0
	})
	var clients sync.WaitGroup
	var stop atomic.Bool
	var answered atomic.Int64
	for i := range sessions {
		clients.Go(func() {
			for !stop.Load() {
				status, answer, err := m.turnOf(i)
				if err != nil || status != http.StatusOK || !reflect.DeepEqual(answer, want[i]) {
					t.Errorf("session %d: %d %v %v, without a mirror %v", i, status, answer, err, want[i])
					return
				}
				answered.Add(1)
			}
		})
	}
	defer clients.Wait()
	defer stop.Store(true)
	next := m.pools["llama-next"]
	served := func(what string, f func() bool) {
		at := answered.Load()
		m.until(what, func() bool { return t.Failed() || answered.Load() > at+50 && f() })
	}
	served("the mirror's engines serve copies, and find their sessions again", func() bool {
		return m.mirrored("ended", `outcome="completed"`) > 10 && next[0].Stats().PrefixHits+next[1].Stats().PrefixHits > 200
	})
	for _, e := range next {
		e.Pause()
	}
	dropped := m.mirrored("dropped")
	served("copies are dropped while the engines stand still", func() bool { return m.mirrored("dropped") > dropped+20 })
	ended := m.mirrored("ended")
	for _, e := range next {
		e.Resume()
	}
	served("copies are served again", func() bool { return m.mirrored("ended") > ended+20 })
	failed := m.mirrored("ended", `outcome="failed"`)
	next[0].Kill()
	next[1].Kill()
	served("copies fail at engines that are dead", func() bool { return m.mirrored("ended", `outcome="failed"`) > failed })
	if n := m.metric("kvasir_requests_total", `pool="llama-next"`); n != 0 {
		t.Errorf("%v copies are among the requests", n)
	}
	if n := m.metric("kvasir_requests_total", `pool="llama"`, `outcome="completed"`); n < float64(answered.Load()) {
		t.Errorf("%v requests were completed, %d answered", n, answered.Load())
	}
	t.Logf("%d answers; copies: %v sent, %v ended, %v dropped", answered.Load(), m.mirrored("sent"), m.mirrored("ended"), m.mirrored("dropped"))
}

// mirrored is a metric of copies for the pool llama-next.
func (m *manyModels) mirrored(which string, labels ...string) float64 {
	return m.metric("kvasir_route_mirrors_"+which+"_total", append(labels, `pool="llama-next"`)...)
}

// TestAStoppedMirrorDoesNotHoldUpThePicker when it ends with copies under way.
func TestAStoppedMirrorDoesNotHoldUpThePicker(t *testing.T) {
	m := startManyModels(t, map[string]string{"route.yaml": mirrorRoute + "    mirrors: [{pool: llama-next}]\n"})
	for _, e := range m.pools["llama-next"] {
		e.Pause()
		defer e.Resume()
	}
	m.until("a copy is under way", func() bool {
		status, _, err := m.turnOf(0)
		return err == nil && status == http.StatusOK && m.mirrored("sent") > 0
	})
	if m.mirrored("ended") != 0 {
		t.Fatal("the copy has ended")
	}
	if err := m.picker.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.exited:
	case <-time.After(patience):
		t.Fatal("the picker does not end")
	}
}

// TestARouteLimitsAllClients: beyond the limit they get 429 and when to come again, while a pool's own name has no limit.
func TestARouteLimitsAllClients(t *testing.T) {
	m := startManyModels(t, map[string]string{"route.yaml": mirrorRoute + "  limits: {requestsPerMinute: 3}\n"})
	refused := 0
	for i := range 6 {
		switch status, body, _ := m.ask("chat"); {
		case status == http.StatusTooManyRequests && strings.Contains(body, "route_requests_per_minute") && strings.Contains(body, "default/chat"):
			refused++
		case status != http.StatusOK:
			t.Errorf("request %d: %d %s", i, status, body)
		}
	}
	if refused < 2 {
		t.Errorf("%d of 6 requests were refused, 3 are let through in a minute", refused)
	}
	if n := m.metric("kvasir_route_refused_total", `reason="route_requests_per_minute"`); n != float64(refused) {
		t.Errorf("%v requests are counted as refused, want %d", n, refused)
	}
	if status, body, _ := m.ask("llama"); status != http.StatusOK {
		t.Errorf("by the pool's name: %d %s", status, body)
	}
}
