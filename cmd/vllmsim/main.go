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

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	status := start(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// start runs the program until ctx ends and returns its exit status.
func start(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if version.Requested(args) {
		fmt.Fprintln(stdout, "vllmsim", version.Get())
		return 0
	}
	cfg, err := parseFlags(args, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // parseFlags has written why
	}
	cfg.Transfer.Host = os.Getenv("VLLM_NIXL_SIDE_CHANNEL_HOST") // as vLLM does, which has no flag for it
	if err := run(ctx, cfg); err != nil {
		fmt.Fprintln(stderr, "vllmsim:", err)
		return 1
	}
	return 0
}

// run serves until ctx ends and then shuts down as the engine does on SIGTERM.
func run(ctx context.Context, cfg vllmsim.Config) error {
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
