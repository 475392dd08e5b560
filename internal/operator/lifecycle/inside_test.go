package lifecycle

import (
	"testing"
	"time"
)

// An engine that is paused with a request inside, or computes the first step of a long prompt, reads idle.
func TestAPodIsNotIdleWhileAPickerCountsARequestThere(t *testing.T) {
	now := time.Unix(1000, 0)
	p := Pod{Running: true, Ready: true, Acknowledged: now.Add(-time.Minute), Readings: []Reading{{At: now.Add(-time.Second)}, {At: now}}}
	if !Idle(&p, now, time.Second) {
		t.Error("a pod without requests is not idle")
	}
	p.Load = 1
	if Idle(&p, now, time.Second) {
		t.Error("a pod is idle while a picker counts a request there")
	}
	p.Load, p.Readings[1].Busy = 0, 1
	if Idle(&p, now, time.Second) {
		t.Error("a pod is idle while its engine has a request that no picker knows of")
	}
}
