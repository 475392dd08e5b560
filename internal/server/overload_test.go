package server

import (
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/overload"
)

// TestUsageIsMeasured: of the memory what is live, so that garbage is no shortage.
func TestUsageIsMeasured(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 30))
	runtime.GC()
	runtime.GC() // what pools of earlier tests hold goes with the second
	before := usage(1000)
	for r := range overload.Resource(overload.NumResources) {
		if before.Limit[r] <= 0 || before.Used[r] <= 0 || before.Used[r] >= before.Limit[r] {
			t.Errorf("%v: %d of %d", r, before.Used[r], before.Limit[r])
		}
	}
	held := make([]byte, 256<<20) // much more than earlier tests still give back
	runtime.GC()
	if more := usage(1000).Used[overload.Memory] - before.Used[overload.Memory]; more < 240<<20 {
		t.Errorf("256 MiB more are counted as %d bytes", more)
	}
	runtime.KeepAlive(held)
	runtime.GC()
	if more := usage(1000).Used[overload.Memory] - before.Used[overload.Memory]; more > 16<<20 {
		t.Errorf("%d bytes of garbage are counted", more)
	}
}

// TestThePlanStaysBelowTheThresholds: clients that use all that the plan gives them are no shortage of descriptors.
func TestThePlanStaysBelowTheThresholds(t *testing.T) {
	for _, descriptors := range []uint64{4096, 65536, 1 << 20} {
		p := newPlan(0, descriptors)
		m := new(overload.Manager)
		var u overload.Usage
		u.Used[overload.Descriptors], u.Limit[overload.Descriptors] = int64(p.connections+p.gateways+p.reports), int64(descriptors)
		m.Observe(u)
		if s := m.State(); s.Active[overload.LowPriority] {
			t.Errorf("of %d descriptors: %+v", descriptors, s)
		}
	}
}

// TestNoDescriptorLeftIsAFullResource: the measurement itself needs one. The actions must not end when there is none.
func TestNoDescriptorLeftIsAFullResource(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := before
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	u := usage(1000)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if used, limit := u.Used[overload.Descriptors], u.Limit[overload.Descriptors]; used != 1000 || limit != 1000 {
		t.Errorf("%d of %d are in use", used, limit)
	}
	m := new(overload.Manager)
	m.Observe(u)
	if !m.State().Active[overload.Connections] {
		t.Error("connections are still taken")
	}
}
