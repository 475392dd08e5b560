// Command kubectl-kvasir shows what Kvasir does in a cluster, steers it, and answers questions about what the picker
// sees. kubectl runs it as "kubectl kvasir"; it works as well alone.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/console"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == completer {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	os.Exit(run(ctx, args, console.Of(os.Stdin, os.Stdout, os.Stderr, os.Getenv)))
}
