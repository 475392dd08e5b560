// Command picker picks an endpoint for each inference request, and serves the requests as a reverse proxy.
//
// It reads what exists and what is preferred from the API objects of a directory (--standalone DIR) and follows
// changes to them; docs/standalone.md tells how.
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
)

func main() { os.Exit(start(os.Args[1:], os.Stderr)) }

// start runs the program until a signal and returns its exit status. The second signal ends it at once.
func start(args []string, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // parse has said why
	}
	log := newLog(stderr, o.logLevel, o.logFormat)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

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
