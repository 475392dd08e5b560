// Command kvasir-lab compares strategies offline: it plays workloads against model engines in virtual time.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
)

// stdio is what the program reads and writes.
type stdio = console.Console

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], console.Of(os.Stdin, os.Stdout, os.Stderr, os.Getenv)))
}

func run(ctx context.Context, args []string, std stdio) int {
	return command.Run(ctx, newRoot(std), args, std)
}

// newRoot is the command that has all others.
func newRoot(std stdio) *cobra.Command {
	root := command.Root("kvasir-lab", "Compare strategies offline",
		"Plays workloads against model engines in virtual time. It asks no cluster.", std)
	root.Example = examplesRoot
	root.AddCommand(labRun(std), labSweep(std), labEffect(std), labOverload(std), labApart(std), labRoutes(std),
		command.Version(std, "kvasir-lab"))
	return root
}
