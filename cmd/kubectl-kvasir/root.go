package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
)

// stdio is what the program reads and writes.
type stdio = console.Console

// completer is the name by which kubectl asks a plugin to complete a command line.
const completer = "kubectl_complete-kvasir"

// program is what users call this program.
const program = "kubectl kvasir"

// run runs one command and returns the exit status.
func run(ctx context.Context, args []string, std stdio) int {
	return command.Run(ctx, newRoot(std), args, std)
}

// newRoot is the command that has all others.
func newRoot(std stdio) *cobra.Command {
	root := command.Root(program, "See and steer Kvasir in a cluster",
		"Shows what Kvasir does in a cluster, steers it, and answers questions about what the picker sees.", std)
	root.Use = "kubectl-kvasir"
	root.AddGroup(
		&cobra.Group{ID: groupSee, Title: "What happens in a cluster:"},
		&cobra.Group{ID: groupSteer, Title: "Pods and rollouts:"},
		&cobra.Group{ID: groupTools, Title: "Files, engines and prompts, without a cluster:"},
	)
	inGroup(root, groupSee, status(std), topCommand(std), explain(std), decisions(std), prefixesCommand(std), doctorCommand(std),
		sysdumpCommand(std), ui(std))
	inGroup(root, groupSteer, drain(std), undrain(std), rollout(std), injectCommand(std))
	inGroup(root, groupTools, validateCommand(std), events(std), render(std), tokenize(std), command.Version(std, program))
	root.AddCommand(formerTrace(std), moved())
	giveExamples(root)
	return root
}

// moved points users of the former lab command to its program.
func moved() *cobra.Command {
	c := command.New("lab", "Compare strategies offline", "The lab is a program of its own: kvasir-lab.")
	c.Hidden, c.DisableFlagParsing = true, true
	c.Args = nil
	c.RunE = func(*cobra.Command, []string) error {
		return command.Usage("the lab is a program of its own: kvasir-lab takes the same commands and flags")
	}
	return c
}

// Groups of commands in the help.
const (
	groupSee   = "see"
	groupSteer = "steer"
	groupTools = "tools"
)

func inGroup(root *cobra.Command, id string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = id
	}
	root.AddCommand(commands...)
}
