package server

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/internal/config"
)

// marks are the pods of all pools, with the drain marks that picks follow. The picker acknowledges these marks to the
// operator. The zero value has no pods. It is safe for concurrent use, except that one follow must end before the next.
type marks struct {
	mu   sync.Mutex
	pods []config.Pod // guarded by mu; replaced, never written
	// byPool are the same pods; guarded by mu, replaced, never written.
	byPool map[types.NamespacedName][]config.Pod
}

// follow makes picks follow the marks of pods. Its order makes it safe to delete a pod whose mark is acknowledged:
//
//  1. A mark that was lifted is no longer acknowledged.
//  2. apply applies the pods to the picker. It returns when every pick that began before has ended.
//  3. A mark that was set is acknowledged: no pick can choose the pod any more.
//
// If a lifted mark was acknowledged until apply has returned, the operator could delete a pod that picks choose again. If a
// new mark was acknowledged before, it could delete a pod that a pick under way is about to choose.
func (m *marks) follow(pods []config.Pod, apply func()) {
	m.set(keptMarks(m.followed(), pods))
	apply()
	m.set(pods)
}

func (m *marks) set(pods []config.Pod) {
	byPool := map[types.NamespacedName][]config.Pod{}
	for _, p := range pods {
		key := keyOf(p.Namespace, p.Pool)
		byPool[key] = append(byPool[key], p)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods, m.byPool = pods, byPool
}

// of returns the pods of a pool, as followed.
func (m *marks) of(pool types.NamespacedName) []config.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byPool[pool]
}

// followed returns the pods with the marks that picks follow. The caller must not change them.
func (m *marks) followed() []config.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods
}

// keptMarks returns the pods of now, with the marks that both lists have.
func keptMarks(before, now []config.Pod) []config.Pod {
	leaving := map[string]bool{}
	for i := range before {
		leaving[before[i].UID] = before[i].Leaving
	}
	kept := make([]config.Pod, len(now))
	for i := range now {
		kept[i] = now[i]
		kept[i].Leaving = now[i].Leaving && leaving[now[i].UID]
	}
	return kept
}
