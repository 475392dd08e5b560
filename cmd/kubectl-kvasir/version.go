package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/version"
)

// versionCommand is the command version.
func versionCommand(std stdio) *cobra.Command {
	c := newCommand("version", "Print the version", "Prints the version of this program, its commit and the Go release that built it.")
	c.RunE = func(*cobra.Command, []string) error {
		_, err := fmt.Fprintln(std.Out, "kubectl kvasir", version.Get())
		return err
	}
	return c
}
