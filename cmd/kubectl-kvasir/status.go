package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/top"
)

const aboutStatus = `Shows pools, their pods and the stages of these, what their pickers see, and what is not as it should be. Hit ratios are parts
of the prompt tokens of the last minute: HIT was found in caches, PREDICTED was expected there, DIVERGENCE is by how much the
two differ, answer by answer. Without a recent answer they cover the whole time.`

// status is the command of that name.
func status(std stdio) *cobra.Command {
	c := command.New("status [POOL...]", "Pools, pods, hit ratios, and what is wrong", aboutStatus)
	k := newCluster(c, std)
	k.outputs(c, console.Wide, console.Name)
	k.pickers(c)
	all := c.Flags().BoolP("all-namespaces", "A", false, "pools of all namespaces")
	c.Args = nil
	c.ValidArgsFunction = k.complete(poolNames)
	c.RunE = func(c *cobra.Command, args []string) error {
		source, namespace, err := k.source()
		if err != nil {
			return err
		}
		if *all {
			if len(args) > 0 {
				return command.Usage("--all-namespaces excludes names of pools")
			}
			namespace = ""
		}
		pools, err := source.Pools(c.Context(), namespace, args)
		if err != nil {
			return err
		}
		return k.print(pools, func() []string {
			if k.format == console.Wide {
				return pools.Wide(&std)
			}
			return pools.Lines(&std)
		})
	}
	return c
}

const aboutTop = `Shows what status does, on the whole terminal, and refreshes it as it changes. q quits, the arrows (or h, j, k, l) and the page keys scroll,
g and G go to the begin and the end, the space bar asks at once.`

// topCommand is the command top.
func topCommand(std stdio) *cobra.Command {
	c := command.New("top [POOL...]", "Pools and pods, live", aboutTop)
	k := newCluster(c, std)
	k.pickers(c)
	every := c.Flags().Duration("interval", 2*time.Second, "how often pickers are asked, at least 200ms")
	once := c.Flags().Bool("once", false, "show it once, and need no terminal")
	all := c.Flags().BoolP("all-namespaces", "A", false, "pools of all namespaces")
	c.Args = nil
	c.ValidArgsFunction = k.complete(poolNames)
	c.RunE = func(c *cobra.Command, args []string) error {
		if *every < 200*time.Millisecond {
			return command.Usage("--interval is %s, want 200ms or more", *every)
		}
		source, namespace, err := k.source()
		if err != nil {
			return err
		}
		where := "namespace " + namespace
		switch {
		case k.picker != "":
			where = "picker " + k.picker
		case *all:
			namespace, where = "", "all namespaces"
		}
		lines := func(ctx context.Context) ([]string, error) {
			pools, err := source.Pools(ctx, namespace, args)
			if err != nil {
				return nil, err
			}
			return pools.Lines(&std), nil
		}
		if *once {
			pools, err := source.Pools(c.Context(), namespace, args)
			if err != nil {
				return err
			}
			return k.print(pools, func() []string { return pools.Lines(&std) })
		}
		in, isFile := std.In.(*os.File)
		out, isFileToo := std.Out.(*os.File)
		if !isFile || !isFileToo || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
			return errors.New("top needs a terminal; --once does not")
		}
		screen := top.Screen{In: in, Out: out, Title: "kubectl kvasir top   " + where, Every: *every, Lines: lines}
		return screen.Run(c.Context())
	}
	return c
}
