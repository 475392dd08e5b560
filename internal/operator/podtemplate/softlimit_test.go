package podtemplate

import "testing"

// A reporter needs about 54 MiB for 100,000 blocks. In a small container, less for it than by default would have it collect garbage
// all the time, beside the engine.
func TestTheReportersSoftLimitFollowsItsContainers(t *testing.T) {
	for limit, want := range map[int64]int64{1 << 40: 3 << 17, 1 << 30: 384, 256 << 20: 96, 128 << 20: 48, 96 << 20: 48, 64 << 20: 48, 32 << 20: 24, 1: 1} {
		if got := softLimit(limit); got != want {
			t.Errorf("%d MiB of %d bytes, want %d", got, limit, want)
		}
	}
}
