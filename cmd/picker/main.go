// Command picker picks an endpoint for each inference request, and serves the requests as a reverse proxy.
//
// It reads its configuration from the API objects of a cluster (--pool NAMESPACE/NAME) or of a directory (--standalone DIR)
// and follows changes to them; see docs/operations.md and docs/standalone.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // authorities, in images that have no file of them

	"github.com/kvasir-dev/kvasir/internal/coredump"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/version"
)

func main() {
	if err := coredump.Forbid(); err != nil { // a sandbox can refuse it, and the picker serves all the same
		fmt.Fprintln(os.Stderr, "picker:", err)
	}
	os.Exit(start(os.Args[1:], os.Stdout, os.Stderr))
}

// start runs the program until a signal and returns its exit status. The second signal ends it at once.
func start(args []string, stdout, stderr io.Writer) int {
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
