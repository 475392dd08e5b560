package inferencepool

import (
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/scrape"
	"github.com/kvasir-dev/kvasir/internal/operator/lifecycle"
	"github.com/kvasir-dev/kvasir/internal/vllm"
)

// kept is how many readings of an engine are kept: more than plan asks for.
const kept = lifecycle.IdleReadings + 1

// Scraped asks engines for their metrics while their pods drain.
type Scraped struct {
	scraper *scrape.Scraper
	timeout time.Duration

	setting sync.Mutex // held while targets change, so that the last change is the last

	mu        sync.Mutex // guards what follows
	pools     map[types.NamespacedName][]scrape.Target
	addresses map[string]int                         // addresses by pod UID
	readings  map[string]map[int][]lifecycle.Reading // by pod UID and rank, oldest first
}

// NewScraped returns an Engines without pods. Options' Observe is its own.
func NewScraped(options scrape.Options) *Scraped {
	s := &Scraped{
		pools: map[types.NamespacedName][]scrape.Target{}, readings: map[string]map[int][]lifecycle.Reading{}, timeout: scrape.DefaultTimeout,
	}
	if options.Timeout > 0 {
		s.timeout = options.Timeout
	}
	options.Observe = s.observe
	// Draining pods are few and waited for.
	options.Idle = time.Second
	s.scraper = scrape.New(options)
	return s
}

// Watch implements Engines.
func (s *Scraped) Watch(pool *v1alpha1.InferencePool, pods []*corev1.Pod) {
	var targets []scrape.Target
	for _, pod := range pods {
		targets = append(targets, engineTargets(pool, pod)...)
	}
	key := types.NamespacedName{Namespace: pool.Namespace, Name: pool.Name}
	s.replace(key, targets)
}

// Forget implements Engines.
func (s *Scraped) Forget(pool types.NamespacedName) {
	s.replace(pool, nil)
}

// replace changes the targets of one pool.
func (s *Scraped) replace(pool types.NamespacedName, targets []scrape.Target) {
	s.setting.Lock()
	defer s.setting.Unlock()
	all, changed := s.merge(pool, targets)
	if changed {
		s.scraper.Set(all) // it might wait for an observe that runs, which takes s.mu
	}
}

func (s *Scraped) merge(pool types.NamespacedName, targets []scrape.Target) (all []scrape.Target, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.pools[pool], targets) {
		return nil, false
	}
	s.pools[pool] = targets
	if len(targets) == 0 {
		delete(s.pools, pool)
	}
	s.addresses = map[string]int{}
	for _, targets := range s.pools {
		for _, t := range targets {
			s.addresses[t.ID.Pod]++
		}
		all = append(all, targets...)
	}
	for uid := range s.readings {
		if s.addresses[uid] == 0 {
			delete(s.readings, uid)
		}
	}
	return all, true
}

// engineTargets are the addresses of a pod's ranks: one for all of them, or one each.
func engineTargets(pool *v1alpha1.InferencePool, pod *corev1.Pod) []scrape.Target {
	if pod.Status.PodIP == "" {
		return nil
	}
	e := &pool.Spec.Engine
	port, ranks := int(e.Ports.HTTP), 1
	if e.DataParallel.Addressing == v1alpha1.AddressByPort {
		ranks = max(int(e.DataParallel.Ranks), 1)
	}
	out := make([]scrape.Target, ranks)
	for rank := range ranks {
		out[rank] = scrape.Target{
			ID:      endpoint.ID{Pod: string(pod.UID), Rank: rank},
			Address: net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port+rank)), Rank: -1,
			// Nothing secret is sent, and a wrong answer can at most end a drain early: certificates are not checked.
			Wire: endpoint.Wire{H2C: e.Protocol == v1alpha1.ProtocolH2C, TLS: e.TLS.Verification != "", Unchecked: e.TLS.Verification != ""},
		}
	}
	return out
}

func (s *Scraped) observe(id endpoint.ID, m vllm.Metrics, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addresses[id.Pod] == 0 {
		return
	}
	ranks := s.readings[id.Pod]
	if ranks == nil {
		ranks = map[int][]lifecycle.Reading{}
		s.readings[id.Pod] = ranks
	}
	// The answer arrived at time at; it was requested at most a time-out before, and its content can be as old.
	ranks[id.Rank] = append(ranks[id.Rank], lifecycle.Reading{At: at.Add(-s.timeout), Busy: m.Running + m.Waiting})
	ranks[id.Rank] = ranks[id.Rank][max(0, len(ranks[id.Rank])-kept):]
}

// Readings implements Engines: of several ranks, the sums of the readings that each has had in turn, with the earlier
// time.
func (s *Scraped) Readings(podUID string) []lifecycle.Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	ranks := s.readings[podUID]
	if len(ranks) == 0 || len(ranks) < s.addresses[podUID] {
		return nil
	}
	fewest := kept
	for _, one := range ranks {
		fewest = min(fewest, len(one))
	}
	out := make([]lifecycle.Reading, fewest)
	for _, one := range ranks {
		for i, reading := range one[len(one)-fewest:] {
			if out[i].At.IsZero() || reading.At.Before(out[i].At) {
				out[i].At = reading.At
			}
			out[i].Busy += reading.Busy
		}
	}
	return out
}

// Close ends all questions.
func (s *Scraped) Close() error {
	s.scraper.Close()
	return nil
}
