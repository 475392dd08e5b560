// Command vllmsim is a stand-in vLLM engine: OpenAI endpoints, KV events with replay and metrics over real sockets, with
// a block pool, a scheduler and a time model in place of a GPU. Its flags have vLLM's names where vLLM has them.
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

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/internal/version"
)

func main() {
	if version.Asked(os.Args[1:]) {
		fmt.Println("vllmsim", version.Get())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "vllmsim:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

// run serves until ctx ends and then shuts down as the engine does on SIGTERM.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg, verbosity, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	cfg.Log = newLog(stderr, verbosity)
	e, err := vllmsim.StartContext(ctx, cfg)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	c := e.Config()
	cfg.Log.Info("Serving", "address", e.Addr(), "models", c.ServedModelNames, "blocks", c.NumBlocks, "blockSize", c.BlockSize,
		"events", e.EventsAddr(), "replay", e.ReplayAddr(), "speedUp", c.SpeedUp)
	<-ctx.Done()
	cfg.Log.Info("Shutting down", "timeout", c.ShutdownTimeout.String())
	return e.Shutdown(context.WithoutCancel(ctx))
}

func newLog(w io.Writer, verbosity int) logr.Logger {
	return funcr.New(func(prefix, args string) {
		if prefix != "" {
			prefix += ": "
		}
		_, _ = fmt.Fprintln(w, prefix+args) // there is nowhere to report a failure
	}, funcr.Options{LogTimestamp: true, Verbosity: verbosity})
}
