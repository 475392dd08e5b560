package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

func TestReach(t *testing.T) {
	specs := func() []picker.Spec {
		return []picker.Spec{{Name: "p", Endpoints: []endpoint.Endpoint{
			{ID: endpoint.ID{Pod: "a"}, Address: "a:1", Ready: true}, {ID: endpoint.ID{Pod: "b"}, Address: "b:1", Ready: true},
		}}}
	}
	refused := errors.New("connection refused")
	pieces := uint64(0)
	r := newReach(func(endpoint.ID) uint64 { return pieces }, logr.Discard())
	ask := func(pod string, err error) {
		r.recordResult(scrape.Target{ID: endpoint.ID{Pod: pod}, Address: pod + ":1"}, err)
	}
	want := func(what, unreachable, ready string) {
		t.Helper()
		var down, up string
		for _, ep := range r.mark(specs())[0].Endpoints {
			if ep.NotAnswering {
				down += "silent-"
			}
			if ep.Unreachable || ep.NotAnswering {
				down += ep.ID.Pod
			}
			if ep.Ready {
				up += ep.ID.Pod
			}
		}
		if down != unreachable || up != ready {
			t.Errorf("%s: unreachable %q, ready %q, want %q and %q", what, down, up, unreachable, ready)
		}
	}
	want("before any answer", "", "ab")
	ask("a", nil)
	ask("b", refused)
	want("an engine that was never reached", "b", "a")
	ask("a", refused)
	want("one failure after answers", "b", "a")
	ask("a", nil)
	ask("a", refused)
	want("failures with an answer between them", "b", "a")
	ask("a", refused)
	want("two failures: there is no other engine, so both are tried", "ab", "ab")
	ask("b", nil)
	want("an answer", "a", "b")
	ask("a", scrape.ErrNoAnswer)
	want("a connection is no answer", "a", "b")
	ask("a", nil)
	for range silentAfter - 1 {
		ask("a", scrape.ErrNoAnswer)
	}
	want("an engine that is slow to answer", "", "ab")
	pieces++
	for range silentAfter {
		ask("a", scrape.ErrNoAnswer)
		pieces++
	}
	want("an engine that answers requests, if not questions", "", "ab")
	for range silentAfter + 1 {
		ask("a", scrape.ErrNoAnswer)
	}
	want("an engine that answers nothing", "silent-a", "b")
	ask("a", nil)
	want("one answer", "", "ab")
	for range silentAfter + 1 {
		ask("a", scrape.ErrNoAnswer)
	}
	ask("b", refused)
	ask("b", refused)
	want("none answers: all are tried", "silent-ab", "ab")
	ask("b", nil)
	moved := specs()
	moved[0].Endpoints[0].Address = "a:2"
	if ep := r.mark(moved)[0].Endpoints[0]; ep.Unreachable {
		t.Error("an engine is unreachable at an address that was not asked")
	}
	if ep := r.mark(specs())[0].Endpoints[0]; ep.Unreachable {
		t.Error("an address that has left is remembered")
	}
}

// A pool of five engines loses four at once. A request can be tried at three of them only, and is answered all the same;
// status and readiness follow, until the last engine has gone, and again when one is back.
func TestDeadEnginesAreUnreachableEverywhere(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pool.yaml"), poolText("m", "m", ""))
	var engines []*vllmsim.Engine
	for _, pod := range []string{"a", "b", "c", "d", "last"} {
		e := engine(t, "m")
		put(t, filepath.Join(dir, pod+".yaml"), sliceText(t, "m", pod, e))
		engines = append(engines, e)
	}
	last := engines[4]
	i := runOn(t, dir)
	i.awaitReady()
	for _, e := range engines[:4] {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 8 {
		if status, body := i.complete("m"); status != http.StatusOK {
			t.Fatalf("status %d while an engine serves: %s", status, body)
		}
	}
	status := func(want ...string) func() bool {
		return func() bool {
			_, body := i.get(i.listeners.metrics, "/status?output=json")
			for _, w := range want {
				if !strings.Contains(body, w) {
					return false
				}
			}
			return true
		}
	}
	i.eventually("the status counts the dead engines", status("1 of 5 endpoints; the picker cannot connect to 4", `"endpoints":{"total":5,"ready":1`, `"phase":"NotReady"`))
	i.awaitReady()
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	i.eventually("the status counts no engine", status("0 of 5 endpoints; the picker cannot connect to 5", "NoReadyEndpoint"))
	i.eventually("the picker is not ready", func() bool {
		code, body := i.get(i.listeners.health, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "no engine can be connected to")
	})
	if code, body := i.complete("m"); code != http.StatusBadGateway {
		t.Errorf("status %d, want 502 at once: %s", code, body)
	}
	engineAt(t, engines[0].Addr(), vllmsim.EventsConfig{})
	i.awaitReady()
	i.eventually("the engine that is back serves", func() bool { code, _ := i.complete("m"); return code == http.StatusOK })
}

// TestADeafEngineIsSeen: an engine takes connections and answers nothing, as a process that was stopped does. The status and
// readiness say so; one answer is enough to have it back.
func TestADeafEngineIsSeen(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pool.yaml"), poolText("m", "m", ""))
	e := engine(t, "m")
	var silent atomic.Bool
	through := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", e.Addr() }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if silent.Load() {
			<-r.Context().Done()
			return
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	slice := strings.Replace(sliceText(t, "m", "a", e), "port: "+portOf(t, e.Addr()), "port: "+portOf(t, front.Listener.Addr().String()), 1)
	put(t, filepath.Join(dir, "a.yaml"), slice)
	i := runOn(t, dir)
	i.awaitReady()
	silent.Store(true)
	i.eventually("the picker is not ready", func() bool {
		code, body := i.get(i.listeners.health, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "no engine answers")
	})
	_, body := i.get(i.listeners.metrics, "/status?output=json")
	for _, want := range []string{"0 of 1 endpoints; without an answer: 1", `"phase":"NotReady","reason":"NotAnswering"`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	silent.Store(false)
	i.awaitReady()
}
