package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
	"github.com/kvasir-dev/kvasir/internal/cli/workload"
	"github.com/kvasir-dev/kvasir/internal/version"
)

const aboutInject = `Adds the reporter to workloads of your own, whose pods a pool selects: the sidecar, its token and the pickers' CA, the engine's
flags for events, the preStop that waits until the engine is idle, and the grace for that. What is set already stays. Reads
manifests of Pods, Deployments, StatefulSets, DaemonSets, ReplicaSets and LeaderWorkerSets (their leaders), and writes them
to standard output; documents of other kinds stay as they are. What was added and what could not be goes to standard error.

The pool is read from the cluster, or from the file if its InferencePool is in it; then, with --reporter-image, no cluster is
asked.`

// injectCommand is the command inject.
func injectCommand(std stdio) *cobra.Command {
	c := command.New("inject -f FILE", "Add the reporter to a workload of your own", aboutInject)
	k := newCluster(c, std)
	file := c.Flags().StringP("filename", "f", "", "file with manifests, YAML or JSON; - is standard input")
	pool := c.Flags().String("pool", "", "name of the pool; not needed where the file has it")
	image := c.Flags().String("reporter-image", "", "image of the reporter; default is the operator's")
	command.Ensure(c.RegisterFlagCompletionFunc("pool", k.complete(poolNames)))
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *file == "" {
			return command.Usage("--filename is missing")
		}
		in, err := k.open(*file)
		if err != nil {
			return err
		}
		defer in.Close()
		var out bytes.Buffer
		results, err := workload.Inject(c.Context(), in, &out, workload.Options{
			Name: *pool, Namespace: k.namespace(), Version: version.Get().Version,
			Pool: func(ctx context.Context, name types.NamespacedName) (*v1alpha1.InferencePool, error) {
				client, _, _, err := k.connect()
				if err != nil {
					return nil, err
				}
				return fleet.Pool(ctx, client, name)
			},
			Image: func(ctx context.Context) (string, error) {
				if *image != "" {
					return *image, nil
				}
				client, _, _, err := k.connect()
				if err != nil {
					return "", err
				}
				return fleet.ReporterImage(ctx, client)
			},
		})
		if err != nil {
			return err
		}
		for _, r := range results {
			text := "nothing to add"
			if len(r.Added) > 0 {
				text = "added " + strings.Join(r.Added, ", ")
			}
			fmt.Fprintf(std.Err, "%s: %s\n", r.Object, text)
			for _, n := range r.Notes {
				fmt.Fprintf(std.Err, "%s: %s\n", r.Object, std.Paint(console.Warn, n))
			}
		}
		_, err = io.Copy(std.Out, &out)
		return err
	}
	return c
}
