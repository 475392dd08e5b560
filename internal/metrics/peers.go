package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// Peers is what a picker exchanges with others.
type Peers struct {
	Sent     rpc.MeshStats
	Received replicas.Stats
	// ReceivedBytes of updates, and streams that were Refused.
	// Panics ended streams from them.
	ReceivedBytes, Refused, Panics uint64
}

var assumptions = prometheus.NewDesc("kvasir_peer_assumptions_total",
	"Assumptions of other pickers that an endpoint will hold blocks soon, by what this picker did with each.", []string{"outcome"}, nil)

var peerSeries = []series[Peers]{
	gauge("kvasir_peers_told", "Other pickers that receive this one's counters.", nil,
		func(p *Peers) float64 { return float64(p.Sent.Connected) }),
	gauge("kvasir_peers_heard", "Other pickers from which this picker received an update in the last 2 s.", nil,
		func(p *Peers) float64 { return float64(p.Received.Fresh) }),
	gauge("kvasir_peer_staleness_seconds", "Age of the oldest peer update.", nil,
		func(p *Peers) float64 { return p.Received.Staleness.Seconds() }),
	counter("kvasir_peers_expired_total", "Other pickers whose counters were dropped because they sent no update in time.", nil,
		func(p *Peers) float64 { return float64(p.Received.Expired) }),
	counter("kvasir_peer_refused_total", "Streams of other pickers that were refused or aborted.", nil,
		func(p *Peers) float64 { return float64(p.Refused) }),
	counter("kvasir_peer_panics_total", "Faults of this picker that ended the exchange with one other picker.", nil,
		func(p *Peers) float64 { return float64(p.Panics + p.Sent.Panics) }),
	counter("kvasir_peer_sent_messages_total", "Updates sent to other pickers.", nil,
		func(p *Peers) float64 { return float64(p.Sent.Messages) }),
	counter("kvasir_peer_sent_bytes_total", "Bytes of updates sent to other pickers.", nil,
		func(p *Peers) float64 { return float64(p.Sent.Bytes) }),
	counter("kvasir_peer_received_messages_total", "Updates of other pickers.", nil,
		func(p *Peers) float64 { return float64(p.Received.Messages) }),
	counter("kvasir_peer_received_bytes_total", "Bytes of updates of other pickers.", nil,
		func(p *Peers) float64 { return float64(p.ReceivedBytes) }),
	counter("kvasir_peer_duplicate_messages_total", "Updates of other pickers that came again or too late and were passed over.", nil,
		func(p *Peers) float64 { return float64(p.Received.PassedOver) }),
	gauge("kvasir_peer_guesses", "Requests of other pickers whose blocks are assumed to be held.", nil,
		func(p *Peers) float64 { return float64(p.Received.Guesses) }),
}

func collectPeers(out chan<- prometheus.Metric, p *Peers) {
	collect(out, peerSeries, p)
	for r, n := range p.Received.Assumptions {
		out <- prometheus.MustNewConstMetric(assumptions, prometheus.CounterValue, float64(n), replicas.Refusal(r).String())
	}
}
