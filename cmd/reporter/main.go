// Command reporter is the sidecar beside an engine. It mirrors what the engine caches, reports it to every picker replica, and
// serves the wait endpoint of the engine container's preStop hook; docs/reporter.md describes how to run it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	_ "golang.org/x/crypto/x509roots/fallback" // authorities, in images that have no file of them
	"golang.org/x/sync/errgroup"

	"github.com/kvasir-dev/kvasir/internal/coredump"
	"github.com/kvasir-dev/kvasir/internal/engines/transport"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/reporter"
	"github.com/kvasir-dev/kvasir/internal/version"
)

func main() {
	if err := coredump.Forbid(); err != nil { // a sandbox can refuse it, and the reporter works all the same
		fmt.Fprintln(os.Stderr, "reporter:", err)
	}
	os.Exit(start(os.Args[1:], os.Stdout, os.Stderr))
}

// start runs the program until a signal and returns its exit status.
func start(args []string, stdout, stderr io.Writer) int {
	if version.Requested(args) {
		fmt.Fprintln(stdout, "reporter", version.Get())
		return 0
	}
	o, err := parse(args, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // parse has said why
	}
	// A mirror is small and long-lived: memory is worth more here than the collector's time.
	debug.SetGCPercent(o.gcPercent)
	debug.SetMemoryLimit(int64(o.memoryLimit) << 20)
	log := logging.New(stderr, o.logLevel, o.logFormat)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, log); err != nil {
		fmt.Fprintln(stderr, "reporter:", err)
		return 1
	}
	return 0
}

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

// Bounds of the small servers.
const (
	headerTimeout = 5 * time.Second
	maxHeader     = 8 << 10
	// maxConnections is a little more than can wait.
	maxConnections = 300
)

// serve serves HTTP until ctx ends; then it aborts running requests.
func serve(ctx context.Context, addr string, handler http.Handler, log logr.Logger) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	log.Info("Serving", "address", l.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader, IdleTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(limit(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving on %s: %w", addr, err)
	}
	return nil
}
