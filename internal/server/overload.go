package server

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/overload"
)

// overloadEvery is how often the process measures what is in use.
const overloadEvery = time.Second

// keptPerGoroutine is the memory that is reckoned for each goroutine, in bytes. All of them can take goroutineShare of the memory.
// unlimitedGoroutines is their limit without a limit of the memory.
const (
	keptPerGoroutine, goroutineShare = 8 << 10, 0.25
	unlimitedGoroutines              = 256 << 10
)

// usage measures what the process uses. Memory is what was live at the last collection, with stacks and the runtime's own: what can
// be collected is no shortage. Its limit is the collector's.
func usage(descriptors uint64) (u overload.Usage) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}, {Name: "/memory/classes/os-stacks:bytes"},
		{Name: "/memory/classes/metadata/mspan/inuse:bytes"}, {Name: "/memory/classes/metadata/other:bytes"},
		{Name: "/memory/classes/other:bytes"},
	}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			u.Used[overload.Memory] += int64(s.Value.Uint64())
		}
	}
	u.Limit[overload.Goroutines] = unlimitedGoroutines
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		u.Limit[overload.Memory] = limit
		u.Limit[overload.Goroutines] = int64(goroutineShare * float64(limit) / keptPerGoroutine)
	}
	u.Used[overload.Goroutines] = int64(runtime.NumGoroutine())
	u.Used[overload.Descriptors], u.Limit[overload.Descriptors] = usedDescriptors(int64(min(descriptors, math.MaxInt64)))
	return u
}

// usedDescriptors counts the open descriptors, of those that the process can have. Reading the directory takes one itself: if there is
// none, all are in use. The limit is 0 where the system shows no descriptors.
func usedDescriptors(all int64) (used, limit int64) {
	open, err := os.ReadDir("/proc/self/fd")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, 0
	case err != nil:
		return all, all
	}
	return int64(len(open)), all
}

// keepOverload measures periodically until ctx ends.
func (a *app) keepOverload(ctx context.Context) {
	tick := time.NewTicker(overloadEvery)
	defer tick.Stop()
	for {
		a.observeUsage(usage(a.plan.descriptors))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// observeUsage takes a measurement.
func (a *app) observeUsage(u overload.Usage) {
	if !a.overload.Observe(u) {
		return
	}
	s := a.overload.State()
	if reason, message := s.Short(); reason != "" {
		logging.Warn(a.log, "Resources run short", "reason", reason, "message", message)
	} else {
		a.log.Info("Resources suffice again")
	}
}
