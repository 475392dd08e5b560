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

// simulateAll is Simulate of some variants, at the same time: most of it is waiting.
func simulateAll(ctx context.Context, release, dir string, variants ...Variant) (Transcript, error) {
	shown, failures := make([]Transcript, len(variants)), make([]error, len(variants))
	var wg sync.WaitGroup
	for i, v := range variants {
		wg.Go(func() { shown[i], _, failures[i] = Simulate(ctx, release, dir, v) })
	}
	wg.Wait()
	if err := errors.Join(failures...); err != nil {
		return nil, fmt.Errorf("simulating release %s: %w", release, err)
	}
	all := Transcript{}
	for _, one := range shown {
		maps.Copy(all, one)
	}
	return all, nil
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
		NoScaleOut: !v.Bounded(), NoPromptTokensDetails: v.Options, RuntimeLoRA: v.Adapters, Pooling: v.Pooling, DataParallelRank: v.Rank,
		Events: vllmsim.EventsConfig{DigestHashes: v.Options},
	}
	if v.Key != "" {
		cfg.APIKeys = []string{v.Key}
	}
	if v.Rank > 0 {
		cfg.DataParallelSize = 2
	}
	if v.Bounded() {
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
		URL: e.URL(), Events: e.EventsAddr(), Replay: e.ReplayAddr(), Model: dir, Adapters: [2]string{"an/adapter", "another/adapter"},
		QueueLimits: r >= vllmsim.SinceQueueLimits,
		Terminate: func() error {
			go func() { ended <- e.Shutdown(context.WithoutCancel(ctx)) }()
			return nil
		},
	}
	out, frames, err := Observe(ctx, t, v)
	if err != nil || !v.terminates() {
		e.Kill()
		return out, frames, err
	}
	return out, frames, <-ended
}
