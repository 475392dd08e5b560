package picker

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/callout"
	"github.com/kvasir-dev/kvasir/internal/hooks"
)

// callingPicker is a picker whose pool base calls a service, for at most 20 s, before it serves a request.
func callingPicker(t *testing.T, service http.HandlerFunc) (p *Picker, specs []Spec) {
	t.Helper()
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	services := callout.NewServices(time.Now, logr.Discard())
	t.Cleanup(services.Close)
	p = newPicker(t, newClock())
	p.options.HookServices = services
	specs = hookedSpecs(t, steps(hooks.Step{Name: "ask", Call: hooks.Call{URL: server.URL, Timeout: 20 * time.Second}}), hooks.Spec{})
	for i := range specs {
		specs[i].Policy.Admission.Priorities = map[string]Priority{"low": {Level: -1}}
	}
	if err := p.Apply(specs); err != nil {
		t.Fatal(err)
	}
	return p, specs
}

// TestAServiceDecides: it refuses, sends requests to another pool, and its failures are those of the step.
func TestAServiceDecides(t *testing.T) {
	t.Parallel()
	answer := make(chan string, 1)
	p, _ := callingPicker(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, <-answer) })
	for text, want := range map[string]string{
		`{"result": true}`:                                  "base base",
		`{"result": {"model": "plain"}}`:                    "plain plain",
		`{"result": {"model": "plain", "priority": "low"}}`: "plain plain",
		`{"result": false}`:                                 CodeHook,
		`{"result": {"model": "gone"}}`:                     CodeHookFailed,
		`{"result": {"priority": "gone"}}`:                  CodeHookFailed,
		`{}`:                                                CodeHookFailed,
	} {
		answer <- text
		d, _, err := ask(p, "base", nil)
		got := code(err)
		if err == nil {
			got = d.Pool + " " + d.Model
			d.End(Completed)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestACallHoldsUpItsRequestAlone: while a service does not answer, requests of other pools are served, and the configuration changes: a
// pod is not deleted later because of a service. A pool that is removed meanwhile serves the request no more.
func TestACallHoldsUpItsRequestAlone(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	p, specs := callingPicker(t, func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-release
		_, _ = io.WriteString(w, `{"result": true}`)
	})
	ended := make(chan error, 1)
	go func() {
		d, _, err := ask(p, "base", nil)
		if err == nil {
			d.End(Completed)
		}
		ended <- err
	}()
	<-asked
	if d, _, err := ask(p, "plain", nil); err != nil {
		t.Errorf("another pool: %v", err)
	} else {
		d.End(Completed)
	}
	if err := p.Apply(specs[1:]); err != nil { // returns though the call is under way
		t.Error(err)
	}
	close(release)
	if err := <-ended; err == nil {
		t.Error("a pool that was removed has served a request")
	}
}

// TestAClientThatLeavesEndsItsCall: nothing of it stays.
func TestAClientThatLeavesEndsItsCall(t *testing.T) {
	t.Parallel()
	asked, left := make(chan struct{}), make(chan struct{})
	p, _ := callingPicker(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // without it, the server does not notice that the connection has closed
		asked <- struct{}{}
		<-r.Context().Done()
		close(left)
	})
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := p.Pick(ctx, asksFor("base", userTurn, ""))
		ended <- err
	}()
	<-asked
	leave()
	if err := <-ended; err == nil {
		t.Error("the request was served")
	}
	<-left
}
