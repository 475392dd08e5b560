package inferencepool

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// maxWarmups is how many pods are warmed up at once. Others wait; each turns warm at its deadline whatever happened.
const maxWarmups = 8

// Warmups runs warm-ups in the background. It is a manager's Runnable: Start ends when its context and all warm-ups do.
type Warmups struct {
	Pickers Pickers
	// Changed is called for a pool when a warm-up of it has ended. It must be read.
	Changed chan<- event.GenericEvent

	mu    sync.Mutex // guards what follows
	ctx   context.Context
	slots chan struct{}
	wait  sync.WaitGroup
	known map[string]*warmup // by pod UID
}

type warmup struct {
	done bool
	over time.Time // when it is forgotten
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (w *Warmups) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (w *Warmups) Start(ctx context.Context) error {
	w.mu.Lock()
	w.ctx, w.slots = ctx, make(chan struct{}, maxWarmups)
	w.mu.Unlock()
	<-ctx.Done()
	w.wait.Wait()
	return nil
}

// Done reports whether a pod's warm-up has ended.
func (w *Warmups) Done(podUID string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.known[podUID]
	return known != nil && known.done
}

// Begin warms a pod up, once.
func (w *Warmups) Begin(pool *v1alpha1.InferencePool, podUID string, now time.Time) {
	limits := pool.Spec.WarmUp
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil || w.ctx.Err() != nil || limits == nil || w.known[podUID] != nil {
		return
	}
	most := time.Duration(limits.MaxSeconds) * time.Second
	for uid, old := range w.known {
		if old.done && now.After(old.over) {
			delete(w.known, uid)
		}
	}
	if w.known == nil {
		w.known = map[string]*warmup{}
	}
	this := &warmup{over: now.Add(most + time.Hour)}
	w.known[podUID] = this
	w.wait.Add(1)
	go w.run(w.ctx, pool, podUID, this, most)
}

func (w *Warmups) run(ctx context.Context, pool *v1alpha1.InferencePool, podUID string, this *warmup, most time.Duration) {
	defer w.wait.Done()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case w.slots <- struct{}{}:
		// In any case the pod is as warm as it gets; the pickers count what they replay.
		_ = w.Pickers.Warm(ctx, types.NamespacedName{Namespace: pool.Namespace, Name: pool.Name}, podUID, int(pool.Spec.WarmUp.MaxTokens))
		<-w.slots
	case <-ctx.Done():
	}
	w.mu.Lock()
	this.done = true
	w.mu.Unlock()
	select {
	case w.Changed <- event.GenericEvent{Object: pool}:
	case <-ctx.Done():
	}
}
