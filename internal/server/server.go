// Package server is the picker as a process: it wires the picks, the event plane, the servers for clients, gateways,
// reporters and peers, and the sources of its configuration, and runs them until it is asked to end.
//
// run has the order of the start and of the end, apply what a new state of the configuration changes.
package server

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// Main runs the picker until a signal and returns its exit status. The second signal ends the process at once.
func Main(args []string, stdout, stderr io.Writer) int {
	if version.Requested(args) {
		fmt.Fprintln(stdout, "picker", version.Get())
		return 0
	}
	o, err := parse(args, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // parse has said why
	}
	if o.validate {
		return validate(context.Background(), o, stdout, stderr)
	}
	log := logging.New(stderr, o.logLevel, o.logFormat)
	if o.operator.replica == "" {
		o.operator.replica = podName()
	}
	ctx, stop := untilSignal(context.Background())
	defer stop()

	l, err := listen(ctx, o)
	if err == nil {
		err = run(ctx, o, l, log)
	}
	if err != nil {
		fmt.Fprintln(stderr, "picker:", err)
		return 1
	}
	return 0
}

// podName is the name of the pod that the picker runs in, or of its host.
func podName() string {
	if name := os.Getenv("POD_NAME"); name != "" {
		return name
	}
	host, err := os.Hostname()
	if err != nil {
		return "picker"
	}
	return host
}

// untilSignal returns a context that ends with the first signal. The second one ends the program at once. stop waits
// until signals are left alone again.
func untilSignal(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for range 2 {
			select {
			case <-quit:
				return
			case <-signals:
				if ctx.Err() != nil {
					os.Exit(1)
				}
				cancel()
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-done
		cancel()
	}
}
