package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
)

const aboutDrain = `Marks a pod, so that no picker chooses it any more; requests under way go on. That alone leaves the pod where it is, and undrain
takes it back. With --replace another pod is made in its place, and it is deleted when it is idle, at the latest at the
deadline.`

// drain is the command of that name.
func drain(std stdio) *cobra.Command {
	c := command.New("drain POD", "Send no more requests to a pod", aboutDrain)
	k := newCluster(c, std)
	k.outputs(c, console.Name)
	replace := c.Flags().Bool("replace", false, "replace the pod, and delete it when it is idle")
	within := c.Flags().Duration("deadline", 0, "with --replace: delete it after this time even if requests run; default is the pool's drain.deadlineSeconds")
	argument(c, "pod", false)
	c.ValidArgsFunction = k.one(podNames)
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case *within != 0 && !*replace:
			return command.Usage("--deadline needs --replace: without it the pod is not deleted")
		case *within < 0:
			return command.Usage("--deadline is %s, want more than nothing", *within)
		}
		client, _, namespace, err := k.connect()
		if err != nil {
			return err
		}
		marked, err := fleet.Mark(c.Context(), client, types.NamespacedName{Namespace: namespace, Name: args[0]},
			fleet.Drain{Replace: *replace, Within: *within, Now: time.Now()})
		if err != nil {
			return err
		}
		return k.print(marked, func() []string {
			text := fmt.Sprintf("pod/%s drains: no picker of the pool %s chooses it any more", marked.Pod, marked.Pool)
			switch {
			case !marked.Changed:
				text = fmt.Sprintf("pod/%s drains already", marked.Pod)
			case marked.Deadline != nil:
				text = fmt.Sprintf("pod/%s drains and is replaced; it is deleted when idle, at the latest at %s", marked.Pod,
					marked.Deadline.Format(time.RFC3339))
			}
			return []string{text}
		})
	}
	return c
}

// undrain is the command of that name.
func undrain(std stdio) *cobra.Command {
	c := command.New("undrain POD", "Send requests to a pod again",
		"Takes the mark off a pod that drain has set. Pods that the operator drains are not given back: it would mark them again.")
	k := newCluster(c, std)
	k.outputs(c, console.Name)
	argument(c, "pod", false)
	c.ValidArgsFunction = k.one(podNames)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, _, namespace, err := k.connect()
		if err != nil {
			return err
		}
		marked, err := fleet.Unmark(c.Context(), client, types.NamespacedName{Namespace: namespace, Name: args[0]})
		if err != nil {
			return err
		}
		return k.print(marked, func() []string {
			if !marked.Changed {
				return []string{fmt.Sprintf("pod/%s does not drain", marked.Pod)}
			}
			return []string{fmt.Sprintf("pod/%s gets requests again", marked.Pod)}
		})
	}
	return c
}
