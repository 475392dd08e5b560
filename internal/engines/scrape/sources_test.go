package scrape

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// received collects the calls of EventSource.
type received struct {
	mu   sync.Mutex
	last map[endpoint.ID]EventSource
	n    int
}

func (h *received) add(id endpoint.ID, s EventSource) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last[id] = s
	h.n++
}

func (h *received) take() (map[endpoint.ID]EventSource, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.last), h.n
}

// source is one rank in an engine's answer.
func source(rank, events, replay int) string {
	return fmt.Sprintf(`"%d":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://10.9.9.9:%d","replay_endpoint":"tcp://10.9.9.9:%d",`+
		`"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv@m"}`, rank, events, replay)
}

func TestEventSourcesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := new(atomic.Pointer[string])
		say := func(s string) { answer.Store(&s) }
		var asked atomic.Int64
		p := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body := *answer.Load()
			switch {
			case body == "down":
				w.WriteHeader(http.StatusBadGateway)
			case r.URL.Path == "/metrics":
				_, _ = fmt.Fprint(w, page1(0, 0), "vllm:num_requests_running{engine=\"1\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 0\n")
			case body == "absent":
				asked.Add(1)
				http.NotFound(w, r)
			case body == "hang":
				<-r.Context().Done()
			default:
				asked.Add(1)
				_, _ = fmt.Fprint(w, body)
			}
		})
		h := &received{last: map[endpoint.ID]EventSource{}}
		s := New(Options{EventSource: h.add, Dial: p.dial})
		defer s.Close()
		say("{" + source(4, 5001, 6001) + "," + source(5, 5002, 6002) + "}")
		a, b, silent := target("a", 0, "pod:8000"), target("a", 1, "pod:8000"), target("a", 2, "pod:8000")
		a.EventRank, b.EventRank, silent.EventRank = 4, 5, -1
		targets := []Target{a, b, silent}
		s.Set(targets)
		for _, tc := range []struct {
			answer string
			within time.Duration
			a, b   EventSource
		}{
			{"{" + source(4, 5001, 6001) + "," + source(5, 5002, 6002) + "}", time.Second, EventSource{true, 5001, 6001}, EventSource{true, 5002, 6002}},
			{"{" + source(4, 5001, 6001) + "," + source(5, 5009, 6002) + "}", 11 * time.Second, EventSource{true, 5001, 6001}, EventSource{true, 5009, 6002}},
			{"hang", 20 * time.Second, EventSource{true, 5001, 6001}, EventSource{true, 5009, 6002}},
			{"<html>", 20 * time.Second, EventSource{true, 5001, 6001}, EventSource{true, 5009, 6002}},
			{"{" + strings.Repeat(" ", 1<<20) + "}", 20 * time.Second, EventSource{true, 5001, 6001}, EventSource{true, 5009, 6002}},
			// Restarted on other ports: known as soon as the engine answers again, not at the next regular question.
			{"down", 5 * time.Second, EventSource{true, 5001, 6001}, EventSource{true, 5009, 6002}},
			{"{" + source(4, 1, 2) + "," + source(5, 3, 4) + "}", 2 * time.Second, EventSource{true, 1, 2}, EventSource{true, 3, 4}},
			{"{" + source(4, 1, 2) + "}", 11 * time.Second, EventSource{true, 1, 2}, EventSource{}}, // says nothing about the other
			{"{}", 11 * time.Second, EventSource{Answered: true}, EventSource{Answered: true}},
			{"absent", 11 * time.Second, EventSource{}, EventSource{}}, // an older release took its place
			{"{" + source(4, 1, 2) + "," + source(5, 3, 4) + "}", 70 * time.Second, EventSource{true, 1, 2}, EventSource{true, 3, 4}},
		} {
			say(tc.answer)
			time.Sleep(tc.within)
			synctest.Wait()
			got, _ := h.take()
			if diff := cmp.Diff(map[endpoint.ID]EventSource{a.ID: tc.a, b.ID: tc.b}, got); diff != "" {
				t.Errorf("after %.60q (-want +got):\n%s", tc.answer, diff)
			}
		}
		say("{" + source(4, 9, 2) + "," + source(5, 3, 4) + "}")
		s.AskEventSources([]endpoint.ID{a.ID})
		synctest.Wait()
		if got, _ := h.take(); got[a.ID] != (EventSource{true, 9, 2}) {
			t.Errorf("asked at once, told %v", got[a.ID])
		}
		_, told := h.take()
		before := asked.Load()
		for range 20 { // the same targets again request nothing and report nothing
			s.Set(targets)
		}
		synctest.Wait()
		if _, now := h.take(); now != told || asked.Load() != before {
			t.Errorf("%d calls and %d questions for targets that were set before", now-told, asked.Load()-before)
		}
		d := target("d", 3, "pod:8000") // a new one does
		d.EventRank = 5
		s.Set(append(targets, d))
		time.Sleep(time.Second)
		synctest.Wait()
		if got, _ := h.take(); got[d.ID] != (EventSource{true, 3, 4}) {
			t.Errorf("a new target received %v", got[d.ID])
		}
	})
}

func TestAnEngineOfOneRankIsTheOnlyEndpointBehindItsAddress(t *testing.T) {
	three := map[int]EventSource{3: {true, 7, 8}}
	for name, tc := range map[string]struct {
		sources map[int]EventSource
		rank    int
		alone   bool
		want    EventSource
	}{
		"its own number":             {three, 3, false, EventSource{true, 7, 8}},
		"another number, alone":      {three, 0, true, EventSource{true, 7, 8}},
		"another number, one of two": {three, 0, false, EventSource{}},
		"no publisher at all":        {map[int]EventSource{}, 0, false, EventSource{Answered: true}},
		"several, none of them ours": {map[int]EventSource{3: {true, 7, 8}, 4: {true, 9, 10}}, 0, true, EventSource{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sourceOf(tc.sources, tc.rank, tc.alone); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestEventSources(t *testing.T) {
	one := func(fields string) string { return `{"0":{` + fields + `}}` }
	many := func(n int) string {
		var all []string
		for r := range n {
			all = append(all, source(r, 1, 2))
		}
		return "{" + strings.Join(all, ",") + "}"
	}
	for name, tc := range map[string]struct {
		answer string
		want   map[int]EventSource // nil for an error
	}{
		"bound to all addresses":             {one(`"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"`), map[int]EventSource{0: {true, 5557, 5657}}},
		"a free port of one address":         {one(`"endpoint":"tcp://10.0.0.7:41923","replay_endpoint":null`), map[int]EventSource{0: {true, 41923, 0}}},
		"IPv6":                               {one(`"endpoint":"tcp://[fd00::7]:41923"`), map[int]EventSource{0: {true, 41923, 0}}},
		"the address of another pod":         {one(`"endpoint":"tcp://kubernetes.default.svc:443"`), map[int]EventSource{0: {true, 443, 0}}},
		"not on TCP":                         {one(`"endpoint":"ipc:///tmp/kv","replay_endpoint":"inproc://x"`), map[int]EventSource{0: {Answered: true}}},
		"no port":                            {one(`"endpoint":"tcp://*"`), map[int]EventSource{0: {Answered: true}}},
		"a port that is none":                {one(`"endpoint":"tcp://*:65536","replay_endpoint":"tcp://*:-1"`), map[int]EventSource{0: {Answered: true}}},
		"switched off":                       {one(`"enable_kv_cache_events":false,"endpoint":"tcp://*:5557"`), map[int]EventSource{0: {Answered: true}}},
		"another publisher":                  {one(`"publisher":"null","endpoint":"tcp://*:5557"`), map[int]EventSource{0: {Answered: true}}},
		"unknown fields":                     {one(`"endpoint":"tcp://*:1","topic":"` + strings.Repeat("\\u0000", 100) + `","new":[{}]`), map[int]EventSource{0: {true, 1, 0}}},
		"a rank without a source":            {`{"0":null}`, map[int]EventSource{0: {Answered: true}}},
		"no publisher":                       {"{}", map[int]EventSource{}},
		"64 ranks":                           {many(64), func() map[int]EventSource { m, _ := EventSources([]byte(many(64))); return m }()},
		"65 ranks":                           {many(65), nil},
		"a rank that is no number":           {`{"x":{}}`, nil},
		"a rank below 0":                     {`{"-1":{}}`, nil},
		"a list":                             {`[]`, nil},
		"nothing":                            {`null`, nil},
		"the page of a server of other kind": {`<html>`, nil},
		"an endpoint of another type":        {one(`"endpoint":5557`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := EventSources([]byte(tc.answer))
			if (err == nil) != (tc.want != nil) {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(tc.want, got); tc.want != nil && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzEventSources(f *testing.F) {
	f.Add([]byte("{" + source(0, 5557, 5657) + "}"))
	f.Add([]byte(`{"3":{"endpoint":"tcp://[::]:1"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := EventSources(text)
		if err != nil && got != nil || len(got) > maxSources {
			t.Fatalf("%d sources, error %v", len(got), err)
		}
		for rank, s := range got {
			if rank < 0 || !s.Answered || s.Events < 0 || s.Events > 65535 || s.Replay < 0 || s.Replay > 65535 {
				t.Errorf("rank %d: %+v", rank, s)
			}
		}
	})
}
