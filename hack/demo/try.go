//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvasir-dev/kvasir/hack/demo/fleet"
	"github.com/kvasir-dev/kvasir/hack/demo/replay"
	"github.com/kvasir-dev/kvasir/internal/sim/chat"
)

const (
	// tryProfile is the engines' time model: slow enough that one engine cannot take all chats. tryBlocks is the size of each cache:
	// small, so that evictions are seen.
	tryProfile = "70b-tp4-h100"
	tryBlocks  = 4096
	// tryRound is how much chat is made at a time, in the engines' time.
	tryRound = 10 * time.Minute
	// trySpeedUp is how much faster than their model the engines run.
	trySpeedUp = 2
	// tryBots is how many system prompts the chats have.
	tryBots = 8
	// tryPrompt has more than a block of tokens.
	tryPrompt = "Tell me about the wells of wisdom below the roots of the old tree."
	// restartAfter is how long an engine that has ended stays away.
	restartAfter = 10 * time.Second
)

// tryOptions are the flags of try.
type tryOptions struct {
	pods      int
	proxy     int
	page      int
	chats     float64
	tokenizer string
	bin       string
}

// try starts engines, a picker and chats, and leaves them running until ctx ends, which is no error.
func try(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parseTry(args, stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kvasir-try-")
	if err != nil {
		return fmt.Errorf("making a directory for the fleet: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	interrupted := ctx
	f, err := fleet.Start(ctx, fleet.Options{
		Bin: o.bin, Dir: dir, Pods: o.pods, Strategy: "MarginalCost", Profile: tryProfile, Blocks: tryBlocks, SpeedUp: trySpeedUp,
		StreamInterval: 1, Tokenizer: o.tokenizer, ProxyPort: o.proxy, MetricsPort: o.page,
	})
	if err != nil {
		return err
	}
	defer func() {
		_, _, stopErr := f.Stop()
		err = errors.Join(err, stopErr)
	}()
	o.show(stdout, f)

	ctx, cancel := context.WithCancelCause(ctx)
	talked := make(chan struct{})
	go func() {
		defer close(talked)
		if err := o.talk(ctx, f); err != nil {
			cancel(err)
		}
	}()
	defer func() { <-talked }()
	defer cancel(nil)
	if err := watch(ctx, f, stdout); interrupted.Err() == nil {
		return err
	}
	_, _ = fmt.Fprintln(stdout, "Ending all of it ...")
	return nil
}

func parseTry(args []string, stderr io.Writer) (*tryOptions, error) {
	o := &tryOptions{}
	set := flag.NewFlagSet("demo try", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.IntVar(&o.pods, "pods", 4, "simulated engines")
	set.Float64Var(&o.chats, "chats", 40, "chat sessions that begin in a minute of the engines' time")
	set.IntVar(&o.proxy, "proxy-port", 8080, "port of 127.0.0.1 for requests, if it is free")
	set.IntVar(&o.page, "page-port", 9090, "port of 127.0.0.1 for the picker's page, if it is free")
	set.StringVar(&o.tokenizer, "tokenizer", "", "directory with a tokenizer.json.gz and tokenizer_config.json for engines and picker")
	set.StringVar(&o.bin, "bin", "", "directory of the programs picker and vllmsim (default: this program's own)")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if o.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding the picker and the simulator: %w", err)
		}
		o.bin = filepath.Dir(self)
	}
	switch {
	case set.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	case o.pods < 1 || o.pods > 64:
		return nil, fmt.Errorf("--pods is %d, want 1 to 64", o.pods)
	case o.proxy < 0 || o.proxy > 65535 || o.page < 0 || o.page > 65535:
		return nil, fmt.Errorf("--proxy-port is %d and --page-port %d, want 0 to 65535", o.proxy, o.page)
	case !(o.chats >= 0 && o.chats <= 1000):
		return nil, fmt.Errorf("--chats is %v, want 0 to 1000", o.chats)
	}
	return o, nil
}

// show prints what a person can do with the fleet.
func (o *tryOptions) show(out io.Writer, f *fleet.Fleet) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }
	p("%d simulated engines and a picker run, with %g chats a minute. Ctrl-C ends all of it.\n\n", o.pods, o.chats*trySpeedUp)
	p("Open the picker's page:\n\n  %s/\n\n", f.MetricsURL)
	p("Send a request of your own, twice. The second one hits the cache (x-kvasir-predicted-tokens):\n\n")
	p("  curl -i %s/v1/chat/completions -H 'content-type: application/json' -d '{\"model\": \"%s\", \"max_tokens\": 16,\n",
		f.ProxyURL, fleet.Model)
	p("    \"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]}'\n\n", tryPrompt)
	p("Why a request went there: its header x-kvasir-reason, and the tab Decisions of the page, with the cost at each engine.\n\n")
	p("Kill an engine, and see where its requests go. It starts again after %v:\n\n", restartAfter)
	for i, pod := range f.Pods {
		p("  kill -9 %-8d # %s, %s\n", f.PID(i), pod, f.PodURLs[i])
	}
	p("\nChange the strategy, or make a mistake; the page names its line:\n\n  %s\n\n", filepath.Join(f.Objects, "policy.yaml"))
	p("Then put your own engines behind it: docs/standalone.md; your gateway: docs/install-gateways.md.\n\n")
}

// talk sends chats through the picker until ctx ends: those of several bots, each with a system prompt of its own, so that there is
// more than one prefix to place.
func (o *tryOptions) talk(ctx context.Context, f *fleet.Fleet) error {
	client := replay.NewClient(f.ProxyURL, "")
	defer client.Close()
	bots, ctx := errgroup.WithContext(ctx)
	for bot := range tryBots {
		bots.Go(func() error { return o.serveBot(ctx, client, bot) })
	}
	return bots.Wait()
}

// serveBot sends the chats of one bot, round after round, each with conversations of its own.
func (o *tryOptions) serveBot(ctx context.Context, client *replay.Client, bot int) error {
	for round := uint64(0); ctx.Err() == nil; round++ {
		script, err := o.script(bot, round)
		if err != nil {
			return err
		}
		if len(script.Sessions) == 0 {
			<-ctx.Done()
			return nil
		}
		plan := &replay.Plan{Model: fleet.Model, Chat: script, SpeedUp: trySpeedUp}
		if _, err := plan.Run(ctx, client, &replay.Counters{}); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// script is what a bot's users say in a round. The chats of all bots begin at even distances, the first one at once.
func (o *tryOptions) script(bot int, round uint64) (*chat.Script, error) {
	sessions := int(math.Ceil(o.chats * tryRound.Minutes() / tryBots))
	c := chat.Default(sessions, tryRound)
	c.Seed = 1 + round*tryBots + uint64(bot)
	script, err := chat.New(c)
	if err != nil {
		return nil, err
	}
	for i := range script.Sessions {
		script.Sessions[i].Start = tryRound * time.Duration(i*tryBots+bot) / time.Duration(sessions*tryBots)
	}
	return script, nil
}

// watch starts engines again that have ended, until ctx ends. It fails if the picker ends.
func watch(ctx context.Context, f *fleet.Fleet, out io.Writer) error {
	for {
		pod, err := f.Ended(ctx)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "%s has ended. It starts again in %v.\n", f.Pods[pod], restartAfter)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(restartAfter):
		}
		if err := f.Restart(pod); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "%s runs again: kill -9 %d ends it.\n", f.Pods[pod], f.PID(pod))
	}
}
