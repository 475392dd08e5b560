package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
)

// rollout is the command of that name.
func rollout(std stdio) *cobra.Command {
	c := command.Group("rollout", "Watch, pause and restart a pool's rollout",
		"Rollouts of a pool's pods to its newest template. kubectl rollout does not know them.")
	c.AddCommand(rolloutStatus(std), rolloutPause(std), rolloutResume(std), rolloutRestart(std))
	return c
}

// poolCommand is a command on one pool.
func poolCommand(std stdio, use, short, long string) (*cobra.Command, *cluster) {
	c := command.New(use+" POOL", short, long)
	k := newCluster(c, std)
	argument(c, "pool", false)
	c.ValidArgsFunction = k.one(poolNames)
	return c, k
}

const aboutRolloutStatus = `Waits until all pods of a pool are of its newest revision, and shows how far it has come. The exit status is 1 when the rollout
has stopped by itself, or the time is up.`

// lookEvery is how often a rollout is looked at.
const lookEvery = time.Second

func rolloutStatus(std stdio) *cobra.Command {
	c, k := poolCommand(std, "status", "Wait for a rollout", aboutRolloutStatus)
	k.outputs(c)
	watch := c.Flags().BoolP("watch", "w", true, "wait for the end; else report the progress")
	timeout := c.Flags().Duration("timeout", 0, "longest wait; 0 waits until it ends")
	c.RunE = func(c *cobra.Command, args []string) error {
		client, _, namespace, err := k.connect()
		if err != nil {
			return err
		}
		ctx := c.Context()
		if *timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, *timeout)
			defer cancel()
		}
		r, err := watchRollout(ctx, &std, client, types.NamespacedName{Namespace: namespace, Name: args[0]}, *watch)
		if r == nil {
			return err
		}
		if err := k.print(r, func() []string { return []string{r.Line()} }); err != nil {
			return err
		}
		switch {
		case err != nil:
			return err
		case r.Failed:
			return fmt.Errorf("the rollout of pool %s has stopped: kubectl kvasir status %s shows why", r.Pool, r.Pool)
		}
		return nil
	}
	return c
}

// watchRollout looks at a rollout until it is done or goes no further.
func watchRollout(ctx context.Context, std *stdio, c client.Client, name types.NamespacedName, watch bool) (*fleet.Rollout, error) {
	bar := std.Progress()
	defer bar.End()
	for {
		pool, err := fleet.Pool(ctx, c, name)
		if err != nil {
			return nil, err
		}
		r := fleet.RolloutOf(pool)
		if !watch || r.Done || r.Failed {
			return &r, nil
		}
		text := "pods updated: " + r.Reason
		if r.Paused != "" {
			text += fmt.Sprintf(" (paused: kubectl kvasir rollout resume %s)", name.Name)
		}
		bar.Show(int(r.Updated), int(r.Desired), text, fmt.Sprintf("%d ready, %d draining", r.Ready, r.Draining))
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return &r, fmt.Errorf("the rollout of pool %s is not done in time", name.Name)
			}
			return &r, ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

func rolloutPause(std stdio) *cobra.Command {
	c, k := poolCommand(std, "pause", "Replace no more pods for their revision",
		"Pauses a pool: no pod is replaced for its revision, and lost ones are made of the revision in service. Drains that have begun end.")
	all := c.Flags().Bool("all", false, "keep the size as well, whatever replicas or autoscaling say")
	c.RunE = k.change(func(ctx context.Context, c client.Client, name types.NamespacedName) (string, error) {
		switch changed, err := fleet.Pause(ctx, c, name, *all); {
		case err != nil:
			return "", err
		case !changed:
			return "paused already", nil
		}
		return "paused", nil
	})
	return c
}

func rolloutResume(std stdio) *cobra.Command {
	c, k := poolCommand(std, "resume", "Let a paused pool go on", "Lets a pool go on that pause has stopped.")
	c.RunE = k.change(func(ctx context.Context, c client.Client, name types.NamespacedName) (string, error) {
		switch changed, err := fleet.Resume(ctx, c, name); {
		case err != nil:
			return "", err
		case !changed:
			return "not paused", nil
		}
		return "resumed", nil
	})
	return c
}

func rolloutRestart(std stdio) *cobra.Command {
	c, k := poolCommand(std, "restart", "Replace all pods by new ones of the same template",
		"Makes a new revision of the same template, and so a rollout in which every pod is drained and replaced, as far as maxSurge and maxUnavailable allow.")
	c.RunE = k.change(func(ctx context.Context, c client.Client, name types.NamespacedName) (string, error) {
		return "restarted", fleet.Restart(ctx, c, name, time.Now())
	})
	return c
}

// change does something to a pool and reports what was done.
func (k *cluster) change(
	do func(ctx context.Context, c client.Client, name types.NamespacedName) (string, error),
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		client, _, namespace, err := k.connect()
		if err != nil {
			return err
		}
		done, err := do(c.Context(), client, types.NamespacedName{Namespace: namespace, Name: args[0]})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(k.std.Out, "kvpool/%s %s\n", args[0], k.std.Paint(console.Good, done))
		return err
	}
}
