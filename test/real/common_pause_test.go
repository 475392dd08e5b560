package real

import (
	"fmt"
	"net/http"
	"testing"
)

// TestWhatAPauseDroppedDoesNotMatch: an engine drops its cache when it is paused, unless it is asked to keep it, and says so
// with its next step only.
func TestWhatAPauseDroppedDoesNotMatch(t *testing.T) {
	engines := sharedEngines(t)[:1]
	p, e := startPicker(t, engines, pickerConfig{files: true}), engines[0]
	kept := completion("kept", ids(1, 500))
	verdict(t, p.repeated(kept))
	pause := func(how string) {
		t.Helper()
		if status, body := e.call(http.MethodPost, "/pause?"+how, nil); status != http.StatusOK {
			refuses(t, "/pause", status, body)
		}
		p.until("the picker sees the pause", func() error { return p.hasCandidate(false) })
	}
	resume := func() {
		t.Helper()
		if status, body := e.call(http.MethodPost, "/resume", nil); status != http.StatusOK {
			stop(t, fmt.Errorf("/resume answers %d: %s", status, body))
		}
		p.until("the picker sees the engine go on", func() error { return p.hasCandidate(true) })
	}
	pause("mode=keep")
	verdict(t, p.settled(engines)) // nothing is held, and nothing is said to be
	resume()
	verdict(t, p.repeated(kept)) // found nowhere at first
	pause("mode=keep&clear_cache=false")
	resume()
	if a := p.try(t.Context(), completion("a step", ids(2, 40))); a.status != http.StatusOK {
		stop(t, fmt.Errorf("status %d: %s", a.status, a.body))
	}
	verdict(t, p.holdsTheSame(engines)) // the step has shown that the blocks were kept
	verdict(t, p.send(kept).exact())
}

// hasCandidate returns an error unless requests can go to an engine, or cannot.
func (p *picker) hasCandidate(want bool) error {
	r := chat("-", say("user", "Where would this go?"))
	status, body := callURL(http.MethodPost, p.metrics+"/explain?path="+r.path, r.body)
	if has := status == http.StatusOK; !has && status != http.StatusServiceUnavailable || has != want {
		return fmt.Errorf("/explain answers %d: %s", status, body)
	}
	return nil
}
