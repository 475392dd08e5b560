package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/overload"
)

var (
	overloadPressure = prometheus.NewDesc("kvasir_overload_pressure",
		"Part of a resource of the picker that is in use, from 0 to 1.", []string{"resource"}, nil)
	overloadActive = prometheus.NewDesc("kvasir_overload_active",
		"1 while the picker refuses what the action names, because a resource runs short.", []string{"action"}, nil)
	overloadRefused = prometheus.NewDesc("kvasir_overload_refused_total",
		"Requests and connections that the picker refused because a resource ran short, by action.", []string{"action"}, nil)
	portShed = prometheus.NewDesc("kvasir_connections_shed_total",
		"Connections that a port of the picker closed for new ones because it was full, by port.", []string{"port"}, nil)
	portTurnedAway = prometheus.NewDesc("kvasir_connections_turned_away_total",
		"New connections that a port of the picker closed because there was no room, by port.", []string{"port"}, nil)
	portFull = prometheus.NewDesc("kvasir_connections_full",
		"1 if a port of the picker turned connections away in the last minute.", []string{"port"}, nil)
)

var overloadDescs = []*prometheus.Desc{overloadPressure, overloadActive, overloadRefused, portShed, portTurnedAway, portFull}

func collectOverload(out chan<- prometheus.Metric, s *overload.State) {
	for i, pressure := range s.Pressure {
		out <- prometheus.MustNewConstMetric(overloadPressure, prometheus.GaugeValue, pressure, overload.Resource(i).String())
	}
	for i, active := range s.Active {
		action, value := overload.Action(i).String(), 0.0
		if active {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(overloadActive, prometheus.GaugeValue, value, action)
		out <- prometheus.MustNewConstMetric(overloadRefused, prometheus.CounterValue, float64(s.Refused[i]), action)
	}
	for _, p := range s.Ports {
		full := 0.0
		if p.Full {
			full = 1
		}
		out <- prometheus.MustNewConstMetric(portShed, prometheus.CounterValue, float64(p.Shed), p.Name)
		out <- prometheus.MustNewConstMetric(portTurnedAway, prometheus.CounterValue, float64(p.TurnedAway), p.Name)
		out <- prometheus.MustNewConstMetric(portFull, prometheus.GaugeValue, full, p.Name)
	}
}
