package lab

import (
	"context"
	"testing"
	"time"
)

// TestUnderOverloadWhoIsAdmittedIsServedInTime: at three times what saturates a fleet, nine of ten admitted requests
// have their first token within twice the unloaded time, the fleet does as much as when it is saturated, and each tenant
// has its fair share within a tenth. Without admission next to nobody is in time.
func TestUnderOverloadWhoIsAdmittedIsServedInTime(t *testing.T) {
	rag, err := Generate("rag", 3000, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		w     *Workload
		pods  int
		speed float64 // that saturates
	}{{slice(t), 8, 3.25}, {rag, 3, 2}} {
		o := Overload{
			Config: Config{
				Workload: c.w, Strategy: only(t, "MarginalCost"), Pods: c.pods, Profile: profile(t, "8b-h100"), BlockTokens: 128, Seed: 1,
				Speed: c.speed, EventLag: 10 * time.Millisecond,
			},
			Factor: 3, Slowdown: 2, Tenants: []float64{0.2, 0.2, 0.2, 0.4},
		}
		r, err := o.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if on := &r.On; on.InTime < 0.9 || on.Answered < 0.9*r.Saturated.Answered || on.Prompt < 0.9*r.Saturated.Prompt || on.Unfair > 0.1 {
			t.Errorf("%s: %.3f in time, %.1f requests/s of %.1f, %.0f tokens/s of %.0f, %.3f off the fair share", r.Workload, on.InTime,
				on.Answered, r.Saturated.Answered, on.Prompt, r.Saturated.Prompt, on.Unfair)
		}
		if r.Off.InTime > 0.2 {
			t.Errorf("%s: without admission %.2f are in time: that is no overload", r.Workload, r.Off.InTime)
		}
	}
}
