package tokencheck

import (
	"context"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/logging"
)

const (
	// opinions is how many engines of an identity answer if the first one's ids differ from those made here.
	opinions = 3
	// mostAsked bounds the engines that are asked for them, since some might not answer.
	mostAsked = 4
	// askOthersAgain is how long no others are asked after fewer than opinions have answered.
	askOthersAgain = 5 * time.Minute
)

// outvote checks whether the engine that answered is an outlier of its identity, such as one that was started with another
// template. It asks two other engines of each identity with three or more. If these two agree with each other and not with the
// first, their answers replace its answers. With two engines, nothing says which of them is wrong. It reports whether answers
// were replaced.
func (k *keeper) outvote(ctx context.Context, pool *Pool, present []Identity, cases func() []Case) (replaced bool) {
	now := time.Now()
	for _, id := range present {
		first := k.answers[id]
		at := slices.IndexFunc(pool.Endpoints, func(ep endpoint.Endpoint) bool { return ep.Epoch() == first.epoch })
		if at < 0 || now.Before(first.secondOpinion) {
			continue
		}
		engines := k.of(pool, id, &pool.Endpoints[at])
		if len(engines) < opinions-1 {
			continue
		}
		others := k.askOthers(ctx, pool, engines, cases)
		if ctx.Err() != nil {
			return false
		}
		if len(others) < opinions-1 {
			first.secondOpinion = now.Add(askOthersAgain)
			k.answers[id] = first
			continue
		}
		if alike(others[0].replies, others[1].replies) && !alike(others[0].replies, first.replies) {
			logging.Warn(k.config.Log, "Engine returned other tokens to the probe than two others of its version, not using its answers",
				"pool", k.name, "pod", pool.Endpoints[at].Pod)
			first, replaced = others[0], true
			first.outvoted = true
		}
		first.secondOpinion = now.Add(proveEvery)
		k.answers[id] = first
	}
	return replaced
}

// of lists the engines of an identity, one for each address: ranks behind one port are one engine. The one that has answered first
// is left out.
func (k *keeper) of(pool *Pool, id Identity, first *endpoint.Endpoint) (engines []*endpoint.Endpoint) {
	for i := range pool.Endpoints {
		ep := &pool.Endpoints[i]
		same := func(other *endpoint.Endpoint) bool { return other.Address == ep.Address && other.Socket == ep.Socket }
		known, ok := k.identities[ep.Epoch()]
		if ok && known.Identity == id && !same(first) && !slices.ContainsFunc(engines, same) {
			engines = append(engines, ep)
		}
	}
	return engines
}

// askOthers lets engines answer the cases until there are opinions.
func (k *keeper) askOthers(ctx context.Context, pool *Pool, engines []*endpoint.Endpoint, cases func() []Case) (others []answers) {
	for _, ep := range engines[:min(mostAsked, len(engines))] {
		if len(others) == opinions-1 {
			break
		}
		if got, err := k.askEngine(ctx, pool, ep, cases()); err == nil {
			others = append(others, got)
		}
	}
	return others
}

// alike reports whether two engines have given the same answers.
func alike(a, b []reply) bool {
	return slices.EqualFunc(a, b, func(a, b reply) bool {
		return a.refused == b.refused && a.Number == b.Number && slices.Equal(a.IDs, b.IDs)
	})
}
