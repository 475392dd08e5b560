package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

const warmPolicy = `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m}
spec: {targetRefs: [{name: m}], strategy: {type: RoundRobin}, decisions: {answerHeaders: Always}}
`

// warmSlice describes an engine.
func warmSlice(t *testing.T, name string, e *vllmsim.Engine, ready bool) string {
	t.Helper()
	port := func(addr string) string {
		_, p, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kvasir.dev/pool: m}}
addressType: IPv4
ports: [{name: http, port: %s}, {name: kv-events, port: %s}, {name: kv-replay, port: %s}]
endpoints:
- {addresses: [127.0.0.1], conditions: {ready: %v}, targetRef: {kind: Pod, name: %s, uid: uid-%s}}
`, name, port(e.Addr()), port(e.EventsAddr()), port(e.ReplayAddr()), ready, name, name)
}

const warmPool = `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: m}
spec: {model: {name: m}, selector: {matchLabels: {app: m}}}
`

// first is what a new pod does with the first requests that it receives.
type first struct {
	hitRatio float64
	ttft     time.Duration // mean, in the engine's time
	computed int           // tokens
}

// beginning scales a pool from one engine to two and looks at the first requests of the new one, with or without
// warming it up before.
func beginning(t *testing.T, warmed bool) first {
	t.Helper()
	dir := t.TempDir()
	engine := func() *vllmsim.Engine {
		e, err := vllmsim.Start(vllmsim.Config{ServedModelNames: []string{"m"}, SpeedUp: 20, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	old, added := engine(), engine()
	put(t, dir+"/pool.yaml", warmPool)
	put(t, dir+"/policy.yaml", warmPolicy)
	put(t, dir+"/old.yaml", warmSlice(t, "old", old, true))
	p := runOn(t, dir, "--report-address", "127.0.0.1:0", "--report-insecure", "--operator", "kvasir/operator", "--name", "p0")
	p.awaitReady()

	random := rand.New(rand.NewPCG(4, 4))
	cached, prompt, n := 0, 0, 0
	var took time.Duration
	ask := func(count string) {
		t.Helper()
		// One of twelve system prompts of 1,000 tokens, the first ones more often, and a question of its own.
		system := min(random.IntN(12), random.IntN(12))
		ids := make([]int, 1100)
		for i := range ids {
			ids[i] = 1000*system + i
			if i >= 1000 {
				ids[i] = 20_000 + random.IntN(10_000)
			}
		}
		body, err := json.Marshal(map[string]any{"model": "m", "prompt": ids, "max_tokens": 1})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		resp, err := p.client.Post(url(p.listeners.proxy, "/v1/completions"), "application/json", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var answer struct {
			Usage struct {
				PromptTokens        int `json:"prompt_tokens"`
				PromptTokensDetails struct {
					CachedTokens int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("status %s: %v", resp.Status, err)
		}
		if count != "" && strings.HasPrefix(resp.Header.Get("X-Kvasir-Endpoint"), count) {
			n++
			cached += answer.Usage.PromptTokensDetails.CachedTokens
			prompt += answer.Usage.PromptTokens
			took += time.Since(began)
		}
	}
	for range 60 {
		ask("")
	}
	put(t, dir+"/added.yaml", warmSlice(t, "added", added, false))
	p.eventually("the new engine is followed", func() bool { return added.Subscribers() > 0 })
	computed := 0
	if warmed {
		pickers := rpc.NewPickers(rpc.PickersOptions{Dial: func(string) (rpc.DialOptions, error) { return rpc.DialOptions{}, nil }})
		defer pickers.Close()
		pickers.Set("default/m", []rpc.Replica{{Name: "p0", Address: p.listeners.reports.Addr().String(), Ready: true}})
		p.eventually("the picker's state is received", func() bool { v := pickers.View("default/m"); return len(v.Replicas) == 1 && v.Replicas[0].Ready })
		done, err := pickers.Warm(t.Context(), "default/m", "uid-added", 11_000, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if computed = done.Tokens; computed > 11_000 || done.Prompts == 0 {
			t.Errorf("%+v: at most 11,000 tokens were asked for", done)
		}
	}
	put(t, dir+"/added.yaml", warmSlice(t, "added", added, true))
	for n < 30 {
		ask("added")
	}
	return first{hitRatio: float64(cached) / float64(prompt), ttft: took / time.Duration(n), computed: computed}
}

// TestAWarmPodHitsFromTheStart compares the first 30 requests of a pod that was warmed up with those of one that was not.
func TestAWarmPodHitsFromTheStart(t *testing.T) {
	cold, warm := beginning(t, false), beginning(t, true)
	t.Logf("the first 30 requests: hit ratio %.2f cold, %.2f warm; an answer of one token %v cold, %v warm (at 20 times the speed); %d tokens computed before",
		cold.hitRatio, warm.hitRatio, cold.ttft, warm.ttft, warm.computed)
	if warm.hitRatio < cold.hitRatio+0.2 {
		t.Errorf("hit ratio %.2f, and %.2f without warming up", warm.hitRatio, cold.hitRatio)
	}
}

func TestWarmingUpEndsWhereItMust(t *testing.T) {
	ranks := []picker.Feed{
		{Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: "u"}}, Spec: &picker.Spec{Model: "m"}},
		{Endpoint: endpoint.Endpoint{ID: endpoint.ID{Pod: "u", Rank: 1}}, Spec: &picker.Spec{Model: "m"}},
	}
	prompts := [][]uint32{{1, 2, 3, 4}, {1, 2, 5}, {7}}
	order := rpc.WarmOrder{MaxTime: time.Minute}
	calm := func() bool { return false }
	for name, tc := range map[string]struct {
		send    func(n int) error
		pressed func() func() bool
		want    rpc.WarmDone
		wrong   bool
	}{
		"all of it":         {want: rpc.WarmDone{Prompts: 6, Tokens: 2 * (4 + 1 + 1)}},
		"one refusal":       {send: func(n int) error { return map[int]error{2: errors.New("no")}[n] }, want: rpc.WarmDone{Prompts: 5, Tokens: 2*(4+1+1) - 1, Skipped: 1}},
		"nothing but those": {send: func(int) error { return errors.New("no") }, want: rpc.WarmDone{Skipped: 3}, wrong: true},
		"requests wait": {
			pressed: func() func() bool { n := 0; return func() bool { n++; return n > 3 } },
			want:    rpc.WarmDone{Prompts: 3, Tokens: 4 + 4 + 1, Skipped: 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, pressed := 0, calm
			if tc.pressed != nil {
				pressed = tc.pressed()
			}
			send := func(context.Context, *endpoint.Endpoint, string, []uint32, string) error {
				n++
				if tc.send != nil {
					return tc.send(n - 1)
				}
				return nil
			}
			done, err := warm(t.Context(), order, ranks, prompts, send, pressed, func(rpc.WarmDone) {})
			if done != tc.want || (err != nil) != tc.wrong {
				t.Errorf("%+v, %v; want %+v", done, err, tc.want)
			}
		})
	}
}
