package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/objects"
)

const aboutValidate = `Checks InferencePools, RoutingPolicies, ModelRoutes and what they refer to, as a picker does that reads them from a directory: the schema, the
rules between fields, and references from one object to another. Each argument is a file, a directory whose *.yaml, *.yml and
*.json files are read, or - for standard input. Nothing is applied and no cluster is asked: an object that exists only in the
cluster is reported as missing. The exit status is 1 when anything is wrong, or when there is no object at all.`

// validateCommand is the command validate.
func validateCommand(std stdio) *cobra.Command {
	c := command.New("validate FILE...", "Check files before they are applied", aboutValidate)
	format := console.Table
	command.Output(c, &format)
	root := c.Flags().String("model-root", "", "directory of tokenizer directories, as the picker's flag of that name; empty does not check tokenizers")
	c.ValidArgsFunction = nil // files
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return command.Usage("the file is missing")
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		found, err := objects.Check(c.Context(), std.In, *root, args)
		if err != nil {
			return err
		}
		err = std.Print(format, found, func() error {
			for _, p := range found.Problems {
				fmt.Fprintln(std.Out, std.Paint(console.Bad, "error: ")+p)
			}
			_, err := fmt.Fprintln(std.Out, found.Summary())
			return err
		})
		if err == nil && !found.Valid {
			return command.ErrReported
		}
		return err
	}
	return c
}
