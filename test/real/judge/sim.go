package judge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// SimulateAll is Simulate of both variants, at the same time: most of it is waiting.
func SimulateAll(ctx context.Context, release, dir string) (Transcript, error) {
	variants := []Variant{Plain, Options}
	var shown [2]Transcript
	var failures [2]error
	var wg sync.WaitGroup
	for i, v := range variants {
		wg.Go(func() { shown[i], _, failures[i] = Simulate(ctx, release, dir, v) })
	}
	wg.Wait()
	if err := errors.Join(failures[:]...); err != nil {
		return nil, fmt.Errorf("simulating release %s: %w", release, err)
	}
	maps.Copy(shown[0], shown[1])
	return shown[0], nil
}

// Simulate starts vllmsim as a release of vLLM and as the variant says, with the model in dir, and observes it.
func Simulate(ctx context.Context, release, dir string, v Variant) (Transcript, []Frame, error) {
	r, err := vllmsim.ParseRelease(release)
	if err != nil {
		return nil, nil, err
	}
	maxModelLen, blocks := v.Context()
	cfg := vllmsim.Config{
		Release: r, ServedModelNames: []string{Model}, ModelRoot: dir, MaxModelLen: maxModelLen, NumBlocks: blocks, BlockSize: BlockSize,
		NoScaleOut: !v.Options, NoPromptTokensDetails: v.Options,
		Events: vllmsim.EventsConfig{DigestHashes: v.Options},
	}
	if v.Key != "" {
		cfg.APIKeys = []string{v.Key}
	}
	if v.Options {
		cfg.MaxSeqs = maxSeqs
		if r >= vllmsim.SinceQueueLimits {
			cfg.MaxQueuedRequests = maxSeqs
		}
		if r >= vllmsim.SinceShutdownTimeout {
			cfg.ShutdownTimeout = 20 * time.Second // room for all that is asked meanwhile, on a busy machine too
		}
	}
	if err := cfg.LoadModel(dir); err != nil {
		return nil, nil, err
	}
	e, err := vllmsim.Start(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("starting the simulator: %w", err)
	}
	ended := make(chan error, 1)
	t := Target{
		URL: e.URL(), Events: e.EventsAddr(), Replay: e.ReplayAddr(), Model: dir,
		QueueLimits: r >= vllmsim.SinceQueueLimits,
		Terminate: func() error {
			go func() { ended <- e.Shutdown(context.WithoutCancel(ctx)) }()
			return nil
		},
	}
	out, frames, err := Observe(ctx, t, v)
	if err != nil {
		e.Kill()
		return nil, nil, err
	}
	return out, frames, <-ended
}
