package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
	"github.com/kvasir-dev/kvasir/internal/cli/live"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

// Source is the source of facts: a cluster and the pickers in it, or one picker alone.
type Source struct {
	Client client.Client
	Access *live.Access
	// Picker that is asked alone, without a cluster; nil in a cluster.
	Picker *live.Picker

	mu      sync.Mutex // guards pickers
	pickers map[types.NamespacedName][]*live.Picker
}

// atOnce bounds the pools that are asked at a time.
const atOnce = 16

// Pools reads the pools of a namespace (of all, if it is empty), or those of them that are named.
func (s *Source) Pools(ctx context.Context, namespace string, names []string) (*Statuses, error) {
	if s.Picker != nil {
		told := ask(ctx, []*live.Picker{s.Picker})
		if err := told[0].Err; err != nil {
			return nil, err
		}
		all := OfPickers(told)
		for _, name := range names {
			if !slices.ContainsFunc(all, func(p *Pool) bool { return p.Name == name }) {
				return nil, fmt.Errorf("picker %s serves no pool %s", s.Picker.Name, name)
			}
		}
		if len(names) > 0 {
			all = slices.DeleteFunc(all, func(p *Pool) bool { return !slices.Contains(names, p.Name) })
		}
		return &Statuses{all, slices.DeleteFunc(RoutesOfPickers(told), func(r *Route) bool { return !r.names(names) })}, nil
	}
	pools, err := s.objects(ctx, namespace, names)
	if err != nil {
		return nil, err
	}
	out := &Statuses{Pools: make([]*Pool, len(pools))}
	errs := make([]error, len(pools)+1)
	reports := make([]map[string]*api.Live, len(pools))
	slots := make(chan struct{}, atOnce)
	var wait sync.WaitGroup
	for i := range pools {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out.Pools[i], reports[i], errs[i] = s.pool(ctx, &pools[i])
		})
	}
	wait.Wait()
	told := map[string]*api.Live{} // pickers of a fleet report for each of its pools
	for _, r := range reports {
		maps.Copy(told, r)
	}
	out.Routes, errs[len(pools)] = s.routes(ctx, namespace, told)
	out.Routes = slices.DeleteFunc(out.Routes, func(r *Route) bool { return !r.names(names) })
	sortRoutes(out.Routes)
	return out, errors.Join(errs...)
}

func (s *Source) objects(ctx context.Context, namespace string, names []string) ([]v1alpha1.InferencePool, error) {
	if len(names) == 0 {
		return fleet.Pools(ctx, s.Client, namespace)
	}
	var pools []v1alpha1.InferencePool
	for _, name := range names {
		pool, err := fleet.Pool(ctx, s.Client, types.NamespacedName{Namespace: namespace, Name: name})
		if err != nil {
			return nil, err
		}
		pools = append(pools, *pool)
	}
	return pools, nil
}

// pool is a pool, and what its pickers report, by namespace and name of the picker.
func (s *Source) pool(ctx context.Context, pool *v1alpha1.InferencePool) (*Pool, map[string]*api.Live, error) {
	pods, err := fleet.Pods(ctx, s.Client, pool)
	if err != nil {
		return nil, nil, err
	}
	p := OfCluster(pool, pods, time.Now())
	pickers, err := s.PickersOf(ctx, pool)
	if err != nil {
		p.Problems = append(p.Problems, Problem{Source: "picker", Message: err.Error()})
		return p, nil, nil //nolint:nilerr // it is shown
	}
	told := ask(ctx, pickers)
	if slices.ContainsFunc(told, func(t PickerReport) bool { return t.Err != nil }) {
		s.forget(pool) // they might be others by now
	}
	p.Join(told)
	lives := map[string]*api.Live{}
	for _, t := range told {
		if t.Err == nil {
			lives[pool.Namespace+"/"+t.Picker] = t.Live
		}
	}
	return p, lives, nil
}

// PickersOf are the pickers of a pool. Connections to them are kept.
func (s *Source) PickersOf(ctx context.Context, pool *v1alpha1.InferencePool) ([]*live.Picker, error) {
	key := client.ObjectKeyFromObject(pool)
	s.mu.Lock()
	known := s.pickers[key]
	s.mu.Unlock()
	pods, err := s.Access.Pods(ctx, pool)
	if err != nil {
		return nil, err
	}
	if len(known) > 0 && slices.EqualFunc(known, pods, func(p *live.Picker, pod corev1.Pod) bool { return p.Name == pod.Name }) {
		return known, nil
	}
	pickers, err := s.Access.Pickers(ctx, pool)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pickers == nil {
		s.pickers = map[types.NamespacedName][]*live.Picker{}
	}
	s.pickers[key] = pickers
	return pickers, nil
}

func (s *Source) forget(pool *v1alpha1.InferencePool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pickers, client.ObjectKeyFromObject(pool))
}

// ask asks all replicas at once.
func ask(ctx context.Context, pickers []*live.Picker) []PickerReport {
	told := make([]PickerReport, len(pickers))
	var wait sync.WaitGroup
	for i, p := range pickers {
		wait.Go(func() {
			told[i].Picker = p.Name
			told[i].Live, told[i].Err = p.Status(ctx)
		})
	}
	wait.Wait()
	return told
}

// Pickers are those of a pool in a cluster, which can be left out where the namespace has one only; else the one that
// was named.
func (s *Source) Pickers(ctx context.Context, namespace, name string) ([]*live.Picker, error) {
	if s.Picker != nil {
		return []*live.Picker{s.Picker}, nil
	}
	var names []string
	if name != "" {
		names = []string{name}
	}
	pools, err := s.objects(ctx, namespace, names)
	switch {
	case err != nil:
		return nil, err
	case len(pools) == 0:
		return nil, fmt.Errorf("there is no pool in the namespace %s", namespace)
	case len(pools) > 1:
		return nil, fmt.Errorf("the namespace %s has %d pools: name one", namespace, len(pools))
	}
	return s.PickersOf(ctx, &pools[0])
}

// MergePrefixes adds up the replicas' reports of the same prefixes; hottest first, at most limit, of one pool if it is
// named.
func MergePrefixes(all []*api.Prefixes, pool string, limit int) []api.Prefix {
	var out []api.Prefix
	at := map[string]int{}
	for _, of := range all {
		for _, p := range of.Prefixes {
			if pool != "" && p.Pool != pool {
				continue
			}
			key := p.Namespace + "/" + p.Pool + "/" + p.Hash
			if i, ok := at[key]; ok {
				out[i].Hits += p.Hits
				if len(p.Holders) > len(out[i].Holders) {
					out[i].Holders = p.Holders
				}
				continue
			}
			at[key] = len(out)
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b api.Prefix) int { return cmp.Or(-cmp.Compare(a.Hits, b.Hits), cmp.Compare(a.Hash, b.Hash)) })
	return out[:min(len(out), limit)]
}
