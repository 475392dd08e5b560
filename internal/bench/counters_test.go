package bench

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEnginesAreParsed(t *testing.T) {
	got, err := ParseEngines(" http://a:8000/v1 ,b:81?events=5&replay=6,,http://[::1]:9")
	if err != nil {
		t.Fatal(err)
	}
	want := []Engine{{Host: "a", Port: 8000}, {Host: "b", Port: 81, Events: 5, Replay: 6}, {Host: "::1", Port: 9}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got[2].URL() != "http://[::1]:9" || got[0].URL() != "http://a:8000" {
		t.Errorf("URLs %s and %s", got[2].URL(), got[0].URL())
	}
	for list, want := range map[string]string{
		"": "no engine", "https://a:1": "https", "a": "a host and a port", "a:1/x": "leave out",
		"a:1?event=2": "unknown", "a:1?replay=2": "needs events",
		"a:1,a:1": "twice", "a:0": "1 to 65535", "a:1?events=x": "events", "http://a b:1": "no URL", ":80": "a host and a port",
	} {
		if _, err := ParseEngines(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", list, err, want)
		}
	}
}

func TestCountersAreSummedOverRanks(t *testing.T) {
	page, status := "", 200
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(s.Close)
	engines, err := ParseEngines(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	page = `vllm:num_requests_running{engine="0"} 1
vllm:num_requests_waiting{engine="0"} 0
vllm:prefix_cache_queries_total{engine="0"} 100
vllm:prefix_cache_queries_total{engine="1"} 50
vllm:prefix_cache_hits_total{engine="0"} 30
vllm:generation_tokens_total{engine="0"} 9
vllm:num_preemptions_total{engine="0"} 2
`
	before, err := ReadCounters(t.Context(), engines)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Counters{{Queries: 150, Hits: 30, Generated: 9, Preemptions: 2}}, before); diff != "" {
		t.Error(diff)
	}
	after := []Counters{{Queries: 250, Hits: 80, Generated: 10, Preemptions: 2}}
	want := []EngineDelta{{Engine: strings.TrimPrefix(s.URL, "http://"), PromptTokens: 100, CachedTokens: 50, GeneratedTokens: 1}}
	if diff := cmp.Diff(want, between(engines, before, after)); diff != "" {
		t.Error(diff)
	}
	if d := between(engines, after, before); !d[0].Restarted {
		t.Error("an engine whose counters fell has not restarted")
	}
	for name, tc := range map[string]struct {
		status int
		page   string
	}{"no metrics": {200, "hello"}, "a refusal": {401, ""}} {
		if status, page = tc.status, tc.page; true {
			if _, err := ReadCounters(t.Context(), engines); err == nil || !strings.Contains(err.Error(), s.URL) {
				t.Errorf("%s: error %v, want one that names the engine", name, err)
			}
		}
	}
}
