package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// stdio is what the program reads and writes.
type stdio = console.Console

// completer is the name by which kubectl asks a plugin to complete a command line.
const completer = "kubectl_complete-kvasir"

// usageError describes an error in a command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// wrong is the error of a wrong command line.
func wrong(format string, args ...any) error { return &usageError{text: fmt.Sprintf(format, args...)} }

// errTold is the error of a command that failed and has said why.
var errTold = errors.New("failed")

// run runs one command and returns the exit status: 0, 1 for what failed, 2 for a wrong command line.
func run(ctx context.Context, args []string, std stdio) int {
	root := newRoot(std)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(std.Err, "error: %v\nSee '%s --help' for usage.\n", err, command.CommandPath())
		return 2
	case errors.Is(err, errTold):
		return 1
	default:
		fmt.Fprintf(std.Err, "error: %v\n", err)
		return 1
	}
}

// newRoot is the command that has all others.
func newRoot(std stdio) *cobra.Command {
	root := newGroup("kubectl-kvasir", "See and steer Kvasir in a cluster",
		"Shows what Kvasir does in a cluster, steers it, and answers questions about what the picker sees.")
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl kvasir"}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{text: err.Error()} })
	root.AddGroup(
		&cobra.Group{ID: groupSee, Title: "What happens in a cluster:"},
		&cobra.Group{ID: groupSteer, Title: "Pods and rollouts:"},
		&cobra.Group{ID: groupTools, Title: "Engines, prompts and strategies, without a cluster:"},
	)
	inGroup(root, groupSee, status(std), topCommand(std), explain(std), decisions(std), traceCommand(std), doctorCommand(std), ui(std))
	inGroup(root, groupSteer, drain(std), undrain(std), rollout(std), injectCommand(std))
	lab := newGroup("lab", "Compare strategies offline", "Plays workloads against model engines in virtual time. It asks no cluster.")
	lab.AddCommand(labRun(std), labSweep(std), labEffect(std), labOverload(std))
	inGroup(root, groupTools, lab, events(std), render(std), tokenize(std), versionCommand(std))
	root.Version = version.Get().String()
	root.SetVersionTemplate("{{.DisplayName}} {{.Version}}\n")
	return root
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

// newCommand is a command without arguments.
func newCommand(use, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, SilenceErrors: true, SilenceUsage: true, DisableFlagsInUseLine: true,
		ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return wrong("unexpected argument %q", args[0])
			}
			return nil
		},
	}
}

// newGroup is a command that has others and does nothing alone.
func newGroup(use, short, long string) *cobra.Command {
	c := newCommand(use, short, long)
	c.SuggestionsMinimumDistance = 2
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		text := fmt.Sprintf("unknown command %q", args[0])
		for _, s := range c.SuggestionsFor(args[0]) {
			text += fmt.Sprintf(", did you mean %q?", s)
		}
		return wrong("%s", text)
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		c.SetOut(c.ErrOrStderr())
		if err := c.Help(); err != nil {
			return err
		}
		return wrong("a command is missing")
	}
	return c
}
