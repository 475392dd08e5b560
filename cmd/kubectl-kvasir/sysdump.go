package main

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/doctor"
	"github.com/kvasir-dev/kvasir/internal/cli/live"
	"github.com/kvasir-dev/kvasir/internal/cli/sysdump"
)

const aboutSysdump = `Writes one archive for a bug report: versions, pools, policies, a summary of their pods, events, what doctor finds, and of each
picker its state, decisions, hottest prefixes, metrics and log; logs of the operator and of reporters too. It holds no Secrets,
prompts, answers, values of environment variables, values of flags that speak of keys or tokens, nor logs of engines. Names of
pools, models, tenants and nodes are in it: read it before you publish it. What could not be gathered stands in errors.txt.`

// sysdumpCommand is the command sysdump.
func sysdumpCommand(std stdio) *cobra.Command {
	c := command.New("sysdump", "One archive for a bug report, without secrets", aboutSysdump)
	k := newCluster(c, std)
	k.pickers(c)
	file := c.Flags().StringP("file", "f", "", "file to write, - is standard output; default is kvasir-sysdump-TIME.tar.gz")
	all := c.Flags().BoolP("all-namespaces", "A", false, "pools of all namespaces")
	c.RunE = func(c *cobra.Command, _ []string) error {
		source, namespace, err := k.source()
		if err != nil {
			return err
		}
		if *all {
			namespace = ""
		}
		checks := doctor.Doctor{Source: source, Namespace: namespace, Now: time.Now}
		dump := sysdump.Dump{Source: source, Namespace: namespace, Now: time.Now()}
		if source.Access != nil {
			if checks.API, err = discovery.NewDiscoveryClientForConfig(source.Access.Config); err != nil {
				return err
			}
			if dump.Logs, err = live.Logs(source.Access.Config); err != nil {
				return err
			}
		}
		dump.Report = checks.Run(c.Context())
		var archive bytes.Buffer
		missing, err := dump.Write(c.Context(), &archive)
		if err != nil {
			return err
		}
		for _, m := range missing {
			fmt.Fprintln(std.Err, "not gathered:", m)
		}
		if *file == "-" {
			_, err := archive.WriteTo(std.Out)
			return err
		}
		if *file == "" {
			*file = sysdump.Name(dump.Now) + ".tar.gz"
		}
		if err := os.WriteFile(*file, archive.Bytes(), 0o600); err != nil {
			return fmt.Errorf("writing the archive: %w", err)
		}
		_, err = fmt.Fprintf(std.Out, "%s has what a bug report needs: read it before you publish it\n", *file)
		return err
	}
	return c
}
