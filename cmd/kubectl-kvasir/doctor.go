package main

import (
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/doctor"
)

const aboutDoctor = `Checks a cluster end to end: definitions, rights, the operator, and of each pool its conditions, pickers, event streams, tokens,
network policies, certificates and clocks. Each finding is ok, warn or fail, with what to do about it. The exit status is 1 when
anything fails.`

// doctorCommand is the command doctor.
func doctorCommand(std stdio) *cobra.Command {
	c := command.New("doctor", "Check a cluster end to end", aboutDoctor)
	k := newCluster(c, std)
	k.outputs(c)
	k.pickers(c)
	all := c.Flags().BoolP("all-namespaces", "A", false, "pools of all namespaces")
	c.RunE = func(c *cobra.Command, _ []string) error {
		source, namespace, err := k.source()
		if err != nil {
			return err
		}
		if *all {
			namespace = ""
		}
		d := doctor.Doctor{Source: source, Namespace: namespace, Now: time.Now}
		if source.Access != nil {
			if d.API, err = discovery.NewDiscoveryClientForConfig(source.Access.Config); err != nil {
				return err
			}
		}
		report := d.Run(c.Context())
		if err := k.print(report, func() []string { return report.Lines(&std) }); err != nil {
			return err
		}
		if report.Failed > 0 {
			return command.ErrReported
		}
		return nil
	}
	return c
}
