//go:build unix

// Command demo shows what Kvasir does on one machine: it starts simulated engines and a picker, replays a real
// conversation trace and chats with a shared system prompt through the picker's HTTP proxy, once for each strategy, and
// reports hit ratios and times. It exits with 1 if a request failed or predictions were not right, and with 2 if it
// could not run.
//
//	demo [flags]
//	demo try [flags]
//	demo cut --from TRACE [--start 10m] [--length 10m] --to FILE
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes.
const (
	exitWrong       = 1
	exitFailed      = 2
	exitInterrupted = 130
)

func main() {
	// A closed pipe is an error of a write and not a death that leaves things behind.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command runs the program and returns its exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	run := demo
	if len(args) > 0 {
		switch args[0] {
		case "cut":
			run, args = cut, args[1:]
		case "try":
			run, args = try, args[1:]
		}
	}
	err := run(ctx, args, stdout, stderr)
	var wrong *wrongError
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		_, _ = fmt.Fprintln(stderr, "demo: interrupted; everything that was started has ended")
		return exitInterrupted
	case errors.As(err, &wrong):
		_, _ = fmt.Fprintln(stderr, "demo: FAILED")
		for _, sentence := range wrong.sentences {
			_, _ = fmt.Fprintln(stderr, "  "+sentence)
		}
		return exitWrong
	case errors.Is(err, errHelp):
		return 0
	}
	_, _ = fmt.Fprintln(stderr, "demo: "+err.Error())
	return exitFailed
}

// wrongError are the checks that failed.
type wrongError struct{ sentences []string }

func (e *wrongError) Error() string { return fmt.Sprintf("%d checks failed", len(e.sentences)) }
