package server

import (
	"context"
	"fmt"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// warmFailures in a row end a warm-up: the engine does not serve yet, or refuses.
const warmFailures = 3

// prefill lets an endpoint compute a prompt.
type prefill func(ctx context.Context, ep *endpoint.Endpoint, model string, ids []uint32, apiKey string) error

// warmUp sends the hottest prompts to each rank of a pod, one at a time, until tokens or time are used up or requests
// wait for room: then the pod is needed as it is.
func (a *app) warmUp(ctx context.Context, o rpc.WarmOrder, progress func(rpc.WarmDone)) error {
	var ranks []picker.Feed
	for _, f := range a.picker.Feeds() {
		if f.Endpoint.ID.Pod == o.Pod && f.Spec.Namespace+"/"+f.Spec.Name == o.Pool {
			if f.Endpoint.Terminating {
				return fmt.Errorf("%w: it is draining", rpc.ErrUnknownPod)
			}
			ranks = append(ranks, f)
		}
	}
	if len(ranks) == 0 {
		return rpc.ErrUnknownPod
	}
	log := a.log.WithName("warm").WithValues("pool", o.Pool, "pod", ranks[0].Endpoint.Pod)
	prompts := a.picker.Hottest(o.Pool, o.MaxTokens/len(ranks))
	began := time.Now()
	done, err := warm(ctx, o, ranks, prompts, a.renderer.Prefill, func() bool { return a.picker.Waiting(o.Pool) > 0 }, progress)
	log.Info("Pod warmed up", "prompts", done.Prompts, "tokens", done.Tokens, "skipped", done.Skipped, "took", time.Since(began).String())
	return err
}

// warm is warmUp for prompts that are known. Tokens count those of a prompt that are not at the beginning of one before.
func warm(ctx context.Context, o rpc.WarmOrder, ranks []picker.Feed, prompts [][]uint32, send prefill, pressed func() bool,
	progress func(rpc.WarmDone)) (rpc.WarmDone, error) {
	timed, cancel := context.WithTimeout(ctx, o.MaxTime)
	defer cancel()
	var done rpc.WarmDone
	failed := 0
	for i, ids := range prompts {
		for r := range ranks {
			f := &ranks[r]
			if timed.Err() != nil || pressed() {
				done.Skipped += (len(prompts)-i)*len(ranks) - r
				progress(done)
				return done, ctx.Err() // the time being up is no failure
			}
			if err := send(timed, &f.Endpoint, f.Spec.Model, ids, f.Spec.EngineAPIKey); err != nil {
				done.Skipped++
				if failed++; failed == warmFailures && timed.Err() == nil {
					return done, err
				}
				continue
			}
			failed = 0
			done.Prompts++
			done.Tokens += len(ids) - picker.Known(prompts[:i], ids)
			progress(done)
		}
	}
	return done, nil
}
