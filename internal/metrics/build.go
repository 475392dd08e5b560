package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/version"
)

// BuildInfo is a gauge of 1 whose labels name the build, in the convention of Prometheus' own programs.
func BuildInfo() prometheus.Collector {
	build := version.Get()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kvasir_build_info", Help: "1; the labels are the version, commit and Go release of the program.",
		ConstLabels: prometheus.Labels{"version": build.Version, "revision": build.Revision, "goversion": build.Go},
	}, func() float64 { return 1 })
}
