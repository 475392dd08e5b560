// Package command is what the command lines of Kvasir's tools have in common: commands, wrong usage, and exit statuses.
package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/spelling"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// Exit statuses of all tools.
const (
	Done   = 0
	Failed = 1
	Wrong  = 2 // a wrong command line
)

// usageError describes an error in a command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// Usage is the error of a wrong command line.
func Usage(format string, args ...any) error { return &usageError{text: fmt.Sprintf(format, args...)} }

// ErrReported is the error of a command that failed and has said why.
var ErrReported = errors.New("failed")

// Run runs one command and returns the exit status.
func Run(ctx context.Context, root *cobra.Command, args []string, std console.Console) int {
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return Done
	case errors.As(err, &usage):
		fmt.Fprintf(std.Err, "error: %v; see '%s --help'\n", err, command.CommandPath())
		return Wrong
	case errors.Is(err, ErrReported):
		return Failed
	default:
		fmt.Fprintf(std.Err, "error: %v\n", err)
		return Failed
	}
}

// Root is the command that has all others of a program, which users call display.
func Root(display, short, long string, std console.Console) *cobra.Command {
	root := Group(strings.ReplaceAll(display, " ", "-"), short, long)
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: display}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(wrongFlag)
	// Cobra's own --version formats with text/template, which makes the linker keep every method of every type.
	asked := root.Flags().BoolP("version", "v", false, version.Usage)
	missing := root.RunE
	root.RunE = func(c *cobra.Command, args []string) error {
		if *asked {
			_, err := fmt.Fprintln(std.Out, display, version.Get())
			return err
		}
		return missing(c, args)
	}
	return root
}

// wrongFlag is the error of a flag that cannot be read, with the flag that was probably meant.
func wrongFlag(c *cobra.Command, err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "unknown flag: --"); ok {
		var known []string
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if meant := spelling.Nearest(name, known); meant != "" {
			text += ", did you mean --" + meant + "?"
		}
	}
	return &usageError{text: text}
}

// New is a command without arguments.
func New(use, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, SilenceErrors: true, SilenceUsage: true, DisableFlagsInUseLine: true,
		ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return Usage("unexpected argument %q", args[0])
			}
			return nil
		},
	}
}

// Group is a command that has others and does nothing alone.
func Group(use, short, long string) *cobra.Command {
	c := New(use, short, long)
	c.SuggestionsMinimumDistance = 2
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		text := fmt.Sprintf("unknown command %q", args[0])
		for _, s := range c.SuggestionsFor(args[0]) {
			text += fmt.Sprintf(", did you mean %q?", s)
		}
		return Usage("%s", text)
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		c.SetOut(c.ErrOrStderr())
		if err := c.Help(); err != nil {
			return err
		}
		return Usage("a command is missing")
	}
	return c
}

// Values completes a flag with the values that it takes.
func Values(c *cobra.Command, flag string, values ...string) {
	Ensure(c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(slices.Clone(values), cobra.ShellCompDirectiveNoFileComp)))
}

// Ensure is for errors of a program that is wrong.
func Ensure(err error) {
	if err != nil {
		panic(err)
	}
}
