package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// build is a version as a document.
type build struct {
	Version   string `json:"version"`
	Revision  string `json:"revision"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// Version is the command version of a program, which users call display.
func Version(std console.Console, display string) *cobra.Command {
	c := New("version", "Print the version", "Prints the version of this program, its commit and the Go release that built it.")
	c.Example = "  # The version, for a script\n  " + display + " version -o json"
	format := console.Table
	Output(c, &format)
	c.RunE = func(*cobra.Command, []string) error {
		i := version.Get()
		return std.Print(format, build{i.Version, i.Revision, i.Go, i.Platform}, func() error {
			_, err := fmt.Fprintln(std.Out, display, i)
			return err
		})
	}
	return c
}

// Output adds -o to a command, with formats beside those that every document has.
func Output(c *cobra.Command, format *console.Format, also ...console.Format) {
	flag := &console.FormatFlag{Format: format, Also: also}
	c.Flags().VarP(flag, "output", "o", flag.Usage())
	Values(c, "output", flag.Names()...)
}
