package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/hooks"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

var hookSteps = prometheus.NewDesc("kvasir_hook_steps_total",
	"Requests for which the step of the pool's policy was taken, by outcome.", []string{"namespace", "pool", "step", "outcome"}, nil)

// collectHooks emits the metrics of the steps that are in force.
func collectHooks(out chan<- prometheus.Metric, all []picker.HookStats) {
	for i := range all {
		h := &all[i]
		for outcome, n := range h.Outcomes {
			out <- prometheus.MustNewConstMetric(hookSteps, prometheus.CounterValue, float64(n),
				h.Namespace, h.Pool, h.Step, hooks.Outcome(outcome).String())
		}
	}
}
