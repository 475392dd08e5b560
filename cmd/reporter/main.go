// Command reporter is the sidecar beside an engine. It mirrors what the engine caches, reports it to every picker replica, and
// serves the wait endpoint of the engine container's preStop hook; docs/reporter.md describes how to run it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	_ "golang.org/x/crypto/x509roots/fallback" // authorities, in images that have no file of them

	"github.com/kvasir-dev/kvasir/internal/coredump"
	"github.com/kvasir-dev/kvasir/internal/logging"
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
	debug.SetMemoryLimit(int64(o.memoryLimit+o.poolPort.needs()) << 20)
	log := logging.New(stderr, o.logLevel, o.logFormat)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, log); err != nil {
		fmt.Fprintln(stderr, "reporter:", err)
		return 1
	}
	return 0
}
