package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/live"
	"github.com/kvasir-dev/kvasir/internal/cli/view"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

const aboutExplain = `Asks a picker where a request would go, and why: every endpoint that could take it, with the terms of its cost, and those that
were left out. Nothing is sent to an engine, and nothing is booked. The request is the body that a client would send.`

// maxRequest bounds the request that is explained, in bytes.
const maxRequest = 64 << 20

// explain is the command of that name.
func explain(std stdio) *cobra.Command {
	c := command.New("explain -f FILE [POOL]", "Where a request would go, and why", aboutExplain)
	k := newCluster(c, std)
	k.outputs(c)
	k.pickers(c)
	file := c.Flags().StringP("filename", "f", "", "file with the request, JSON; - is standard input")
	path := c.Flags().String("path", "", "the request's path; default is /v1/chat/completions for one with messages, else /v1/completions")
	argument(c, "pool", true)
	c.ValidArgsFunction = k.one(poolNames)
	c.RunE = func(c *cobra.Command, args []string) error {
		if *file == "" {
			return command.Usage("--filename is missing")
		}
		in, err := k.open(*file)
		if err != nil {
			return err
		}
		defer in.Close()
		body, err := io.ReadAll(io.LimitReader(in, maxRequest+1))
		if err != nil {
			return fmt.Errorf("reading the request: %w", err)
		}
		var request struct {
			Messages json.RawMessage `json:"messages"`
		}
		switch err := json.Unmarshal(body, &request); {
		case len(body) > maxRequest:
			return fmt.Errorf("the request is longer than %d MiB", maxRequest>>20)
		case err != nil:
			return fmt.Errorf("the request is no JSON object: %w", err)
		case *path == "" && request.Messages != nil:
			*path = "/v1/chat/completions"
		case *path == "":
			*path = "/v1/completions"
		}
		pickers, err := k.pickersOf(c.Context(), first(args))
		if err != nil {
			return err
		}
		// Replicas see the same, except for changes of this moment: the first that answers is enough.
		var errs []error
		for _, p := range pickers {
			e, err := p.Explain(c.Context(), *path, body)
			if err == nil {
				return k.print(e, func() []string { return view.Explanation(&std, e) })
			}
			errs = append(errs, err)
			var fault *live.Fault
			if errors.As(err, &fault) && fault.Code < 500 {
				break // it is about the request
			}
		}
		return errors.Join(errs...)
	}
	return c
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

const aboutDecisions = `Shows the last decisions of a pool's pickers, oldest first: which pod, how much of the prompt was matched and how much the engine
found cached, the cost of the pod that was taken and of the second best. A line is written when a request has ended; with
--picks also when it is placed. Prompts, tokens, sessions and users are nowhere in it. While no client follows, pickers record
only an occasional decision.

With -o json each decision is one line with every candidate's terms, with -o yaml one document.

With --log the records are those of the decision logs, one line of JSON each, picker by picker: the requests that the policy's
decisions.logPercent has chosen, as far back as the pickers keep them, in the format that kvasir-lab replays.`

// decisions is the command of that name.
func decisions(std stdio) *cobra.Command {
	c := command.New("decisions [POOL]", "Where requests have gone", aboutDecisions)
	k := newCluster(c, std)
	k.outputs(c)
	k.pickers(c)
	follow := c.Flags().BoolP("follow", "f", false, "go on with new decisions until interrupted")
	tail := c.Flags().Int("tail", 20, fmt.Sprintf("how many decisions of each picker are shown that were made before, at most %d",
		api.MaxDecisions))
	log := c.Flags().Bool("log", false, "write the records of the decision logs instead")
	picks := c.Flags().Bool("picks", false, "show decisions when they are made, too")
	argument(c, "pool", true)
	c.ValidArgsFunction = k.one(poolNames)
	c.RunE = func(c *cobra.Command, args []string) error {
		if *tail < 0 || *tail > api.MaxDecisions {
			return command.Usage("--tail is %d, want 0 to %d", *tail, api.MaxDecisions)
		}
		pickers, err := k.pickersOf(c.Context(), first(args))
		if err != nil {
			return err
		}
		if *log {
			return decisionLogs(c.Context(), pickers, std.Out)
		}
		show := func(d *api.Decision) error {
			if pool := first(args); pool != "" && d.Pool != pool {
				return nil
			}
			return k.decision(d)
		}
		if k.format == console.Table {
			fmt.Fprintln(std.Out, view.DecisionHeader(&std))
		}
		return eachDecision(c.Context(), pickers, *tail, *follow, !*picks, show)
	}
	return c
}

// decisionLogs writes the decision logs of all replicas, one after the other. It fails if one cannot be read completely.
func decisionLogs(ctx context.Context, pickers []*live.Picker, out io.Writer) error {
	errs := make([]error, len(pickers))
	for i, p := range pickers {
		errs[i] = p.DecisionLog(ctx, out)
	}
	return errors.Join(errs...)
}

// decision prints one.
func (k *cluster) decision(d *api.Decision) error {
	switch k.format {
	case console.JSON:
		return json.NewEncoder(k.std.Out).Encode(d)
	case console.YAML:
		text, err := yaml.Marshal(d)
		if err == nil {
			_, err = fmt.Fprintf(k.std.Out, "---\n%s", text)
		}
		return err
	default:
		_, err := fmt.Fprintln(k.std.Out, view.Decision(&k.std, d))
		return err
	}
}

// eachDecision shows the decisions of all replicas: past ones in the order of time, new ones as they arrive when it
// follows. Being interrupted is no error.
func eachDecision(ctx context.Context, pickers []*live.Picker, tail int, follow, ended bool, show func(*api.Decision) error) error {
	var mu sync.Mutex // guards past, and the output
	var past []*api.Decision
	each := func(d *api.Decision) error {
		mu.Lock()
		defer mu.Unlock()
		if follow {
			return show(d)
		}
		past = append(past, d)
		return nil
	}
	errs := make([]error, len(pickers))
	var wait sync.WaitGroup
	for i, p := range pickers {
		wait.Go(func() {
			errs[i] = p.Decisions(ctx, tail, follow, ended, func(d *api.Decision) error {
				one := *d
				return each(&one)
			})
		})
	}
	wait.Wait()
	if follow && ctx.Err() != nil {
		return nil //nolint:nilerr // it was wanted
	}
	slices.SortStableFunc(past, func(a, b *api.Decision) int { return a.Time.Compare(b.Time) })
	for _, d := range past {
		if err := show(d); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

const aboutPrefixes = `Shows the prefixes that recent requests of a pool have found in caches most often, and which pods hold them: as hashes, which are
those of explain and decisions only where a prompt ends with the prefix. A hit counts a third after ten minutes. HOLDERS have all of
it; a number behind a pod is how many tokens it holds, if not all.`

// prefixes is what the command prints as a document.
type prefixes struct {
	Prefixes []api.Prefix `json:"prefixes"`
}

// prefixesCommand is the command prefixes.
func prefixesCommand(std stdio) *cobra.Command {
	c := command.New("prefixes [POOL]", "Which prefixes are hot, and which pods hold them", aboutPrefixes)
	k := newCluster(c, std)
	k.outputs(c)
	k.pickers(c)
	limit := c.Flags().Int("limit", 20, fmt.Sprintf("most prefixes, at most %d", api.MaxPrefixes))
	argument(c, "pool", true)
	c.ValidArgsFunction = k.one(poolNames)
	c.RunE = func(c *cobra.Command, args []string) error {
		if *limit < 1 || *limit > api.MaxPrefixes {
			return command.Usage("--limit is %d, want 1 to %d", *limit, api.MaxPrefixes)
		}
		pickers, err := k.pickersOf(c.Context(), first(args))
		if err != nil {
			return err
		}
		all, errs := make([]*api.Prefixes, len(pickers)), make([]error, len(pickers))
		var wait sync.WaitGroup
		for i, p := range pickers {
			wait.Go(func() { all[i], errs[i] = p.Prefixes(c.Context(), *limit) })
		}
		wait.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		merged := prefixes{view.MergePrefixes(all, first(args), *limit)}
		return k.print(merged, func() []string { return view.Prefixes(&std, merged.Prefixes) })
	}
	return c
}

// formerTrace is prefixes under its former name.
func formerTrace(std stdio) *cobra.Command {
	c := prefixesCommand(std)
	c.Use, c.Hidden = "trace [POOL]", true
	return c
}
