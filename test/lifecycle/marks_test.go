package lifecycle

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/kvasir-dev/kvasir/internal/operator/controller/inferencepool"
	"github.com/kvasir-dev/kvasir/internal/operator/controller/pickers"
)

// marks listens to the pickers as the operator does, and holds them to what they say: where all have said that they do
// not choose a pod any more, no request goes there.
type marks struct {
	w        *world
	listener *pickers.Listener
	done     sync.WaitGroup
	stop     context.CancelFunc

	acknowledged map[string]time.Time      // by pod UID: when all had said so
	fewest       map[string]map[string]int // requests under way, by pod UID and picker, since that picker has said so
}

// followMarks begins to listen.
func followMarks(w *world) *marks {
	ctx, stop := context.WithCancel(w.Context())
	news := make(chan event.GenericEvent, 16)
	m := &marks{w: w, stop: stop, acknowledged: map[string]time.Time{}, fewest: map[string]map[string]int{}}
	m.listener = pickers.New(pickers.Options{
		Reader: w.admin, Direct: w.admin, Token: w.file("operator.token"), Changed: []chan<- event.GenericEvent{news}, Log: logr.Discard(),
	})
	m.done.Go(func() { _ = m.listener.Start(ctx) })
	m.done.Go(func() { m.follow(ctx, news) })
	return m
}

// follow looks after every word of a picker, and now and then whether there are other pickers.
func (m *marks) follow(ctx context.Context, news <-chan event.GenericEvent) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-ticker.C:
		}
		m.look()
	}
}

func (m *marks) look() {
	view := m.listener.View(types.NamespacedName{Namespace: namespace, Name: poolName})
	for i := range view.Replicas {
		r := &view.Replicas[i]
		for uid, pod := range r.Pods {
			if !pod.Draining {
				delete(m.fewest[uid], r.Picker)
				delete(m.acknowledged, uid) // the mark was lifted, if there was one
				continue
			}
			if m.fewest[uid] == nil {
				m.fewest[uid] = map[string]int{}
			}
			if before, ok := m.fewest[uid][r.Picker]; ok && pod.InFlight > before {
				m.w.Errorf("picker %s has %d requests under way to pod %s that it does not choose; it had %d", r.Picker, pod.InFlight, uid, before)
			}
			m.fewest[uid][r.Picker] = pod.InFlight
		}
	}
	for uid := range m.fewest {
		if since, ok := view.Acknowledged(uid); ok && !since.IsZero() {
			m.acknowledged[uid] = since
		}
	}
}

// came is how the log of a simulated engine shows that a request has arrived, which is not one that renders.
const came = " path=/v1/completions\n"

// end stops listening and checks what the engines have seen: how many pods drained, how many requests they received after
// all pickers had reported that they do not choose them, and how many so late that they cannot have been on their way.
func (m *marks) end() (drained, after, late int) {
	m.stop()
	m.done.Wait()
	all := 0
	for uid, since := range m.acknowledged {
		text, err := os.ReadFile(filepath.Join(m.w.dir, "pods", uid, "vllm.log"))
		if err != nil {
			continue // a pod that never ran
		}
		drained++
		for line := range strings.Lines(string(text)) {
			if !strings.HasSuffix(line, came) {
				continue
			}
			all++
			stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			at, err := time.Parse(time.RFC3339Nano, stamp)
			if err != nil {
				m.w.Fatalf("reading %q: %v", line, err)
			}
			if at.After(since) {
				after++
			}
			if at.After(since.Add(inferencepool.LongestWay)) {
				late++
			}
		}
	}
	if drained > 0 && all == 0 {
		m.w.Errorf("the logs of %d engines show no request", drained)
	}
	return drained, after, late
}
