package inferencepool

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/operator/placement"
)

// islandMemory is what is remembered of an island that gave no node.
type islandMemory struct {
	exhausted time.Time
	failures  int
	givenUp   map[string]bool // UIDs of pods whose wait was given up
}

// islands of a pool, as this reconciliation sees them.
type islands struct {
	all    []v1alpha1.Island
	priced []placement.Island
	states map[string]placement.State
	now    time.Time
}

func (i *islands) spec(name string) *v1alpha1.Island {
	for k := range i.all {
		if i.all[k].Name == name {
			return &i.all[k]
		}
	}
	return nil
}

// placing is the part that distributes pods over islands, and has nodes made for them.
type placing struct {
	*scope
	*observed
	*outcome
}

// placeOn gives plan the islands: where the next pod goes, which gives one up, and which pods have waited too long.
func (r *placing) placeOn(ctx context.Context, input *lifecycle.Input) error {
	r.islands = &islands{now: r.now, states: map[string]placement.State{}}
	if r.pool.Spec.Placement == nil || len(r.pool.Spec.Placement.Islands) == 0 {
		return nil
	}
	r.islands.all = r.pool.Spec.Placement.Islands
	prices, err := r.prices(ctx)
	if err != nil {
		return err
	}
	for k := range r.islands.all {
		r.islands.priced = append(r.islands.priced, islandOf(&r.islands.all[k], prices))
	}
	r.recallIslands()
	r.observeIslands(input.Pods)
	input.Place = r.islands.place
	input.Leave = r.islands.leave
	if err := r.giveUp(ctx, input); err != nil {
		return err
	}
	r.wakeAt(placement.Retry(r.now, r.islands.priced, r.islands.states))
	return nil
}

// prices that a ConfigMap gives; none when it is not there, or names none.
func (r *placing) prices(ctx context.Context) (map[string]string, error) {
	name := r.pool.Spec.Placement.PricesFrom.Name
	if name == "" {
		return nil, nil
	}
	config := &corev1.ConfigMap{}
	// Asked of the API server: the cache can have the operator's own objects only.
	err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.key.Namespace, Name: name}, config)
	if apierrors.IsNotFound(err) {
		r.problems.reference = "ConfigMap " + name + " of placement.pricesFrom is not there"
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading prices of pool %s: %w", r.key, err)
	}
	return config.Data, nil
}

func islandOf(i *v1alpha1.Island, prices map[string]string) placement.Island {
	out := placement.Island{Name: i.Name, Max: -1, Timeout: time.Duration(i.ProvisionTimeoutSeconds) * time.Second}
	price, err := placement.ParsePrice(strings.TrimSpace(prices[i.Name]))
	if err != nil { // not named there, or not a number
		price, _ = placement.ParsePrice(i.HourlyPrice)
	}
	out.Price = price
	if i.LatencyMilliseconds != nil {
		out.Latency = time.Duration(*i.LatencyMilliseconds) * time.Millisecond
	}
	if i.MinReplicas != nil {
		out.Min = int(*i.MinReplicas)
	}
	if i.MaxReplicas != nil {
		out.Max = int(*i.MaxReplicas)
	}
	return out
}

// recallIslands initializes a new process from the status.
func (r *placing) recallIslands() {
	for k := range r.islands.all {
		name := r.islands.all[k].Name
		if r.memory.islands[name] != nil {
			continue
		}
		m := &islandMemory{givenUp: map[string]bool{}}
		for _, s := range r.pool.Status.Islands {
			if s.Name == name && s.State == v1alpha1.IslandExhausted && s.LastTransitionTime != nil {
				m.exhausted, m.failures = s.LastTransitionTime.Time, 1
			}
		}
		r.memory.islands[name] = m
	}
}

// observeIslands counts pods and finds those that wait for a node.
func (r *placing) observeIslands(pods []lifecycle.Pod) {
	for i := range pods {
		p := &pods[i]
		if p.Deleting || p.Finished || p.Mark.Reason != "" {
			continue
		}
		s := r.islands.states[p.Island]
		s.Pods++
		if !p.Assigned && (s.Waiting.IsZero() || p.Created.Before(s.Waiting)) {
			s.Waiting = p.Created
		}
		if m := r.memory.islands[p.Island]; m != nil && p.Assigned && p.Created.After(m.exhausted) {
			m.failures = 0 // the island gives nodes again
		}
		r.islands.states[p.Island] = s
	}
	r.islandStates()
}

func (r *placing) islandStates() {
	for name, m := range r.memory.islands {
		s := r.islands.states[name]
		s.Exhausted, s.Failures = m.exhausted, m.failures
		r.islands.states[name] = s
	}
}

// giveUp replaces pods that have waited too long for a node, or whose node was denied, on another island if there is one.
func (r *placing) giveUp(ctx context.Context, input *lifecycle.Input) error {
	for i := range input.Pods {
		p := &input.Pods[i]
		at := slices.IndexFunc(r.islands.priced, func(i placement.Island) bool { return i.Name == p.Island })
		if at < 0 || p.Assigned || p.Deleting || p.Finished || p.Mark.Reason != "" {
			continue
		}
		island, m := &r.islands.priced[at], r.memory.islands[p.Island]
		denied, err := r.denied(ctx, r.podOf[p.UID])
		if err != nil {
			return err
		}
		if denied == "" && !island.Late(r.now, p.Created) {
			r.wakeAt(p.Created.Add(island.Timeout))
			continue
		}
		if !m.givenUp[p.UID] {
			m.givenUp[p.UID] = true
			if m.exhausted.IsZero() || !p.Created.Before(m.exhausted) || m.failures == 0 {
				m.failures++
			}
			m.exhausted = r.now
			r.islandStates()
			why := "it waited " + island.Timeout.String()
			if denied != "" {
				why = denied
			}
			r.recordEvent(warning, "IslandTimedOut", r.podOf[p.UID], "%s has no node on island %s: %s", p.Name, p.Island, why)
		}
		held := map[string]int{}
		for name, s := range r.islands.states {
			held[name] = s.Pods
		}
		next, ok := r.islands.place(held)
		p.Misplaced = ok && next != p.Island
	}
	for _, m := range r.memory.islands {
		for uid := range m.givenUp {
			if r.podOf[uid] == nil {
				delete(m.givenUp, uid)
			}
		}
	}
	return nil
}

// with is the states with other numbers of pods.
func (i *islands) with(held map[string]int) map[string]placement.State {
	out := map[string]placement.State{}
	for name, s := range i.states {
		s.Pods = held[name]
		out[name] = s
	}
	for name, n := range held {
		s := out[name]
		s.Pods = n
		out[name] = s
	}
	return out
}

func (i *islands) place(held map[string]int) (string, bool) {
	name, _ := placement.Choose(i.now, i.priced, i.with(held))
	return name, name != ""
}

// leave orders islands by how willingly they give up a pod. Those of one price are alike: the value of caches decides.
func (i *islands) leave(held map[string]int, island string) int {
	spare := placement.Spare(i.priced, i.with(held))
	at := slices.Index(spare, island)
	if at < 0 {
		return math.MaxInt
	}
	for at > 0 && i.price(spare[at-1]) == i.price(island) && i.over(held, spare[at-1]) == i.over(held, island) {
		at--
	}
	return at
}

// price of an island; negative for one that the pool does not name any more.
func (i *islands) price(name string) int64 {
	for k := range i.priced {
		if i.priced[k].Name == name {
			return i.priced[k].Price
		}
	}
	return -1
}

// over reports whether an island has more pods than it is allowed.
func (i *islands) over(held map[string]int, name string) bool {
	for k := range i.priced {
		if p := &i.priced[k]; p.Name == name {
			return p.Max >= 0 && held[name] > p.Max
		}
	}
	return false
}
