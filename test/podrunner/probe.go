package podrunner

import (
	"context"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// prober is one probe of a container. It passes with the first success, and fails after as many failures in a row as its
// threshold says; one counts in each period. The kubelet asks once in a period; a prober that does not pass asks
// at each tick, so that tests wait for processes and not for periods.
type prober struct {
	spec     *corev1.Probe
	asking   bool
	due      time.Time // of the next question
	counted  time.Time // the last failure that counted, or the start
	failures int32
	passed   bool
}

// asks reports whether there is a question that this package can ask.
func (p *prober) asks() bool { return p.spec != nil && (p.spec.HTTPGet != nil || p.spec.GRPC != nil) }

// passes reports whether the probe holds nothing up. A readiness probe of another kind never passes.
func (p *prober) passes() bool { return p.spec == nil || p.passed }

// answer takes a result, and reports whether the probe has failed for good.
func (p *prober) answer(err error, now time.Time) (failed bool) {
	period := time.Duration(max(1, p.spec.PeriodSeconds)) * time.Second
	switch {
	case err == nil:
		p.passed, p.failures, p.counted = true, 0, now
	case !now.Before(p.counted.Add(period)):
		p.failures++
		p.counted = now
	}
	if p.failures >= max(1, p.spec.FailureThreshold) {
		p.passed, failed = false, true
	}
	p.due = now
	if p.passed {
		p.due = now.Add(period)
	}
	return failed
}

// probe asks in the background what is due: whether the container has started, and after that whether it is ready and lives.
// One that does not start or live is killed, and starts again.
func (c *container) probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if closed(c.ended) {
		return
	}
	if !c.startup.passes() && c.startup.asks() {
		c.ask(&c.startup, true)
		return
	}
	c.startup.passed = true
	c.ask(&c.readiness, false)
	c.ask(&c.liveness, true)
}

// ask puts a question if it is due. The caller holds mu.
func (c *container) ask(p *prober, fatal bool) {
	if !p.asks() || p.asking || time.Now().Before(p.due) {
		return
	}
	p.asking = true
	probe, ended, ports := p.spec, c.ended, c.spec
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(max(1, probe.TimeoutSeconds))*time.Second)
		defer cancel()
		var err error
		if probe.GRPC != nil {
			err = check(ctx, c.ip, int(probe.GRPC.Port), ptr.Deref(probe.GRPC.Service, ""))
		} else {
			err = get(ctx, c.ip, number(&ports, probe.HTTPGet.Port), probe.HTTPGet.Path)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ended != ended || closed(ended) {
			return // another life of the container
		}
		p.asking = false
		if p.answer(err, time.Now()) && fatal {
			_ = syscall.Kill(-c.process.Process.Pid, syscall.SIGKILL)
		}
	}()
}
