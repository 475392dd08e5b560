package reporter

import (
	"slices"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// TestTheSeedsOfPickersAreKnown: once for all pickers that announce it, and also while none of them can be reached.
func TestTheSeedsOfPickersAreKnown(t *testing.T) {
	p := newPlace(t, 16, 16, true)
	want := []kvblock.Seed{p.root.Seed}
	eventually(t, "the seed is known", func() bool { return slices.Equal(p.reporter.Seeds(), want) })
	for _, k := range p.pickers {
		k.stop()
	}
	eventually(t, "the streams have ended", func() bool {
		return !slices.ContainsFunc(p.reporter.Status().Pickers, func(s PickerStatus) bool { return s.Senders[0].Welcome })
	})
	if got := p.reporter.Seeds(); !slices.Equal(got, want) {
		t.Errorf("%d seeds while no picker can be reached", len(got))
	}
	for _, k := range p.pickers {
		p.startPicker(k)
	}
	eventually(t, "the streams have begun again", func() bool {
		return slices.ContainsFunc(p.reporter.Status().Pickers, func(s PickerStatus) bool { return s.Senders[0].Welcome })
	})
	if got := p.reporter.Seeds(); !slices.Equal(got, want) {
		t.Errorf("%d seeds", len(got))
	}
}
