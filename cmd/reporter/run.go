package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/reporter"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// run mirrors until ctx ends.
func run(ctx context.Context, o *options, log logr.Logger) error {
	o.config.Log = log
	r, err := reporter.New(o.config)
	if err != nil {
		return err
	}
	log.Info("Starting", "version", version.Get().String())
	for rank := range max(o.config.Ranks, 1) {
		log.Info("Mirroring", "rank", rank, "events", r.EventsAddress(rank))
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { r.Run(ctx); return nil })
	group.Go(func() error { o.keepCapacity(ctx, r); return nil })
	if o.drainAddress != "" {
		waiter := &reporter.Waiter{
			Busy: func(ctx context.Context) (bool, error) {
				// The pickers first: a request that one of them has just given up is still in the engine's metrics.
				if r.InFlight(ctx) {
					return true, nil
				}
				return o.busy(ctx)
			},
			Settle:   o.drainSettle,
			Deadline: o.drainDeadline,
		}
		group.Go(func() error { waiter.Run(ctx); return nil })
		group.Go(func() error { return serve(ctx, o.drainAddress, waiter, log) })
	}
	if o.poolPort.address != "" {
		s, err := o.newSidecar(ctx, r, log)
		if err != nil {
			return err
		}
		r.Sidecar = s.Stats
		group.Go(func() error { return o.servePool(ctx, s, log) })
	}
	if o.statusAddress != "" {
		group.Go(func() error { return serve(ctx, o.statusAddress, r.StatusHandler(), log) })
	}
	err = group.Wait()
	log.Info("Stopped")
	return err
}

// busy asks the engine, on every port that it has, whether requests run or wait. It is asked while a pod ends, so files
// are read then, as they are.
func (o *options) busy(ctx context.Context) (bool, error) {
	client, err := o.engineClient()
	if err != nil {
		return true, err
	}
	for _, url := range strings.Split(o.engineMetrics, ",") {
		if busy, err := reporter.EngineBusy(client, url)(ctx); busy || err != nil {
			return true, err
		}
	}
	return false, nil
}

// engineClient asks the engine, and keeps no connection.
func (o *options) engineClient() (*http.Client, error) {
	w := o.engineTLS
	w.TLS = true // if the URL requires it
	if o.engineCA != "" {
		ca, err := os.ReadFile(o.engineCA)
		if err != nil {
			return nil, fmt.Errorf("reading the CA of the engine: %w", err)
		}
		w.CA = string(ca)
	}
	return &http.Client{Transport: transport.Transport(&http.Transport{DisableKeepAlives: true}, w)}, nil
}

// capacityEvery is how often the engine is asked how many blocks it has: it can start later, and again with other flags.
const capacityEvery = 5 * time.Second

// keepCapacity passes the engine's number of blocks to the mirrors, until ctx ends.
func (o *options) keepCapacity(ctx context.Context, r *reporter.Reporter) {
	tick := time.NewTicker(capacityEvery)
	defer tick.Stop()
	for {
		if client, err := o.engineClient(); err == nil {
			urls := strings.Split(o.engineMetrics, ",")
			for rank := range max(o.config.Ranks, 1) {
				// An engine that does not answer has the blocks that it had, or begins another life.
				if blocks, err := reporter.EngineBlocks(ctx, client, urls[min(rank, len(urls)-1)], o.config.FirstRank+rank); err == nil {
					r.Mirror(rank).SetCapacity(blocks)
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
