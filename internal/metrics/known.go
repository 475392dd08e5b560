package metrics

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// Models have series of their own up to so many pools and names of models, LoRA adapters included; further models are
// otherModel, as are requests that name none. Each has about a hundred series.
const (
	maxModels  = 100
	otherModel = "other"
)

// requestSeries are those that a request observes most often, looked up once for each pool and model.
type requestSeries struct {
	namespace, pool, model                                                  string
	pick, sizes, answers, prompts, outputs, firstToken, perToken, completed prometheus.Observer
}

type poolModel struct{ namespace, pool, model string }

// known are the series so far: an immutable map, so that requests read it without a lock.
type known struct {
	series atomic.Pointer[map[poolModel]*requestSeries]
	mu     sync.Mutex // held to replace series
}

func (k *known) find(key poolModel) *requestSeries {
	if all := k.series.Load(); all != nil {
		return (*all)[key]
	}
	return nil
}

// of gives the series of a request's pool and model.
func (r *Requests) of(d *picker.Decision) *requestSeries {
	key := poolModel{d.Namespace, d.Pool, d.Model}
	if key.model == "" {
		key.model = otherModel
	}
	if s := r.known.find(key); s != nil {
		return s
	}
	return r.know(key)
}

// know looks the series up, and keeps them for the next request.
func (r *Requests) know(key poolModel) *requestSeries {
	r.known.mu.Lock()
	defer r.known.mu.Unlock()
	all := map[poolModel]*requestSeries{}
	if before := r.known.series.Load(); before != nil {
		if len(*before) >= maxModels {
			key.model = otherModel
		}
		all = maps.Clone(*before)
	}
	if s := all[key]; s != nil {
		return s
	}
	namespace, pool, model := valid(key.namespace), valid(key.pool), valid(key.model)
	s := &requestSeries{
		namespace: namespace, pool: pool, model: model,
		pick: r.pick.WithLabelValues(namespace, pool), sizes: r.sizes.WithLabelValues(namespace, pool),
		answers: r.answers.WithLabelValues(namespace, pool),
		prompts: r.prompts.WithLabelValues(namespace, pool, model),
		outputs: r.outputs.WithLabelValues(namespace, pool, model), firstToken: r.firstToken.WithLabelValues(namespace, pool, model),
		perToken:  r.perToken.WithLabelValues(namespace, pool, model),
		completed: r.duration.WithLabelValues(namespace, pool, model, picker.Completed.String()),
	}
	all[key] = s
	r.known.series.Store(&all)
	return s
}
