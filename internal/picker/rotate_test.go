package picker

import (
	"bytes"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

// While keys are rotated, endpoints are found whose keys are of the former root, and those whose keys are of the new
// one; afterwards only these.
func TestKeysOfBothRootsAreServedUntilTheLastHasMoved(t *testing.T) {
	spec := testSpec(t, 2)
	p := newPicker(t, newClock(), spec)
	old := keysOf(t, "m", 0, 160)
	for _, pod := range []string{"pod-0", "pod-1"} {
		hold(feed(t, p, pod), old...)
	}
	seed, err := kvblock.NewSeed(bytes.Repeat([]byte{2}, kvblock.MinSeedBytes))
	if err != nil {
		t.Fatal(err)
	}
	rotated := spec
	rotated.Seed = seed
	confirmed := func(when string, want int) {
		t.Helper()
		d := pick(t, p, completion("m", 0, 200, true))
		defer expectEvents(p)
		defer d.End(Completed)
		if len(d.Targets) != 2 {
			t.Fatalf("%s: %d endpoints", when, len(d.Targets))
		}
		for i := range d.Targets {
			if got := d.Targets[i].Confirmed; got != want {
				t.Errorf("%s: %s has %d tokens confirmed, want %d", when, d.Targets[i].Endpoint.Pod, got, want)
			}
		}
	}
	move := func(pod string) {
		f := feed(t, p, pod)
		f.Writer.Clear()
		var ids []uint32
		for i := range uint32(160) {
			ids = append(ids, i)
		}
		hold(f, kvblock.AppendKeys(nil, seed.Root("m", ""), ids, 16)...)
	}
	moved := func(roots ...kvblock.Seed) {
		var names []string
		for _, r := range roots {
			names = append(names, r.ID())
		}
		p.Moved("default/m", names)
	}
	confirmed("before", 160)
	if err := p.Apply([]Spec{rotated}); err != nil {
		t.Fatal(err)
	}
	confirmed("none has moved", 160)
	move("pod-0")
	moved(seed, spec.Seed)
	confirmed("one has moved", 160)
	again := rotated
	again.Policy.Attempts = 2
	if err := p.Apply([]Spec{again}); err != nil {
		t.Fatal(err)
	}
	confirmed("and the policy has changed", 160)
	p.Moved("default/other", []string{seed.ID()})
	confirmed("another pool has moved", 160)
	move("pod-1")
	moved(seed, seed)
	confirmed("all have moved", 160)
	feed(t, p, "pod-0").Writer.Clear()
	feed(t, p, "pod-1").Writer.Clear()
	for _, pod := range []string{"pod-0", "pod-1"} {
		hold(feed(t, p, pod), old...)
	}
	confirmed("keys of the former root come again", 0)
	assertIdle(t, p)
}

// What one request finds of keys that change meanwhile says nothing about the pool.
func TestNothingIsJudgedWhileKeysAreRotated(t *testing.T) {
	spec := testSpec(t, 1)
	p := newPicker(t, newClock(), spec)
	hold(feed(t, p, "pod-0"), keysOf(t, "m", 0, 160)...)
	seed, err := kvblock.NewSeed(bytes.Repeat([]byte{2}, kvblock.MinSeedBytes))
	if err != nil {
		t.Fatal(err)
	}
	spec.Seed = seed
	if err := p.Apply([]Spec{spec}); err != nil {
		t.Fatal(err)
	}
	d := pick(t, p, completion("m", 0, 200, true))
	if d.counted {
		t.Error("the request counts")
	}
	d.End(Completed)
	p.Moved("default/m", []string{seed.ID()})
	d = pick(t, p, completion("m", 0, 200, true))
	if !d.counted {
		t.Error("a request afterwards does not count")
	}
	d.End(Completed)
}
