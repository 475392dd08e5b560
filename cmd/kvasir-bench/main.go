// Command kvasir-bench compares two ways to a user's own engines: round robin and Kvasir, or any two addresses. It sends chats in
// turns, reads the engines' own counters around each turn, and writes a report.
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

	"github.com/kvasir-dev/kvasir/internal/version"
)

// Exit codes.
const (
	exitWrong       = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if version.Requested(args) {
		_, _ = fmt.Fprintln(stdout, "kvasir-bench", version.Get())
		return 0
	}
	o, err := parseFlags(args, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitUsage
	}
	err = o.measure(ctx, stdout)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		_, _ = fmt.Fprintln(stderr, "kvasir-bench: interrupted")
		return exitInterrupted
	}
	_, _ = fmt.Fprintln(stderr, "kvasir-bench:", err)
	return exitWrong
}
