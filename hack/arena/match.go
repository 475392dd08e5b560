//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/fleet"
)

const (
	// startLimit bounds the start of a router.
	startLimit = 60 * time.Second
	// settle is how long a router that serves is left alone before the load, so that it has found all engines.
	settle = 3 * time.Second
)

// match is one router in front of one fleet.
type match struct {
	*options
	name    string
	command command
	url     string
	fleet   *fleet.Fleet
	ready   func(context.Context) bool // nil for no condition

	router *fleet.Process
	spent  time.Duration // CPU of routers that were killed
}

// play starts the router, sends the load and measures.
func (m *match) play(ctx context.Context, list []request) (f *figures, err error) {
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.router.Stop()) }()
	if !sleep(ctx, settle) {
		return nil, context.Cause(ctx)
	}
	before, used := readCounters(ctx, m.fleet.PodURLs), cpuOf(m.router.PID())
	var lost counters // of the engine that is killed
	var failed error
	hooks := map[time.Duration]func(){}
	half := list[len(list)/2].at
	switch m.kill {
	case "engine":
		hooks[half] = func() {
			lost = readCounters(ctx, m.fleet.PodURLs[:1])
			failed = m.fleet.KillPod(0)
		}
	case "router":
		hooks[half] = func() {
			m.spent = cpuOf(m.router.PID())
			failed = errors.Join(m.router.Kill(), m.launch())
		}
	}
	outcomes := newClient(m.url, m.limit).load(ctx, list, hooks)
	if err := errors.Join(context.Cause(ctx), failed); err != nil {
		return nil, err
	}
	after := readCounters(ctx, m.fleet.PodURLs)
	f = &figures{Requests: len(list), Memory: memoryOf(m.router.PID())}
	f.CPU = (m.spent + cpuOf(m.router.PID()) - used).Seconds() / float64(len(list)) * 1000
	if queries := after.queries + lost.queries - before.queries; queries > 0 {
		f.Hits = (after.hits + lost.hits - before.hits) / queries
	}
	f.First, f.Goodput, f.Failures = summarize(outcomes, m.bound, m.limit)
	return f, nil
}

func (m *match) launch() (err error) {
	m.router, err = m.fleet.Run(m.name, m.command.path, m.command.env, m.command.args...)
	return err
}

// start starts the router and returns when it serves.
func (m *match) start(ctx context.Context) error {
	if err := m.launch(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	probe := &request{session: "probe", body: body([]uint32{0, 1}, 1, []string{" a", " b"})}
	c := newClient(m.url, 5*time.Second)
	last := ""
	err := m.router.Await(ctx, m.name, func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		err := c.answer(ctx, probe, func() {})
		if err != nil {
			last = err.Error()
		}
		return err == nil && (m.ready == nil || m.ready(ctx))
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%w; a request got: %s", err, strings.TrimSpace(last)), m.router.Stop())
	}
	return nil
}
