package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/tokens/tokencheck"
)

var tokensState = prometheus.NewDesc("kvasir_tokens_state",
	"1 for how far exact tokens can be had in the picker: NoFiles where none are wanted, Exact where texts and chats are.",
	[]string{"namespace", "pool", "state"}, nil)

var tokensUnproven = prometheus.NewDesc("kvasir_tokens_unproven",
	"1 for each request kind whose ids made in the picker are not trusted, while the ids of other kinds are.",
	[]string{"namespace", "pool", "kind"}, nil)

var tokensSeries = []series[tokencheck.Status]{
	gauge("kvasir_tokens_exact_texts", "1 while token ids of texts made in the picker are trusted.", ofPool,
		func(s *tokencheck.Status) float64 { return truth(s.Texts) }),
	gauge("kvasir_tokens_exact_chats", "1 while token ids of chats made in the picker are trusted.", ofPool,
		func(s *tokencheck.Status) float64 { return truth(s.Chats) }),
	counter("kvasir_tokens_probes_total", "Probes that engines have answered: about a hundred requests whose ids are compared.", ofPool,
		func(s *tokencheck.Status) float64 { return float64(s.Probes) }),
	counter("kvasir_tokens_mismatches_total", "Times that ids made in the picker were found to differ from the engines' ids.", ofPool,
		func(s *tokencheck.Status) float64 { return float64(s.Mismatches) }),
	counter("kvasir_tokens_doubts_total", "Times that what engines announced has raised doubts about ids made in the picker.", ofPool,
		func(s *tokencheck.Status) float64 { return float64(s.Doubts) }),
}

func collectTokens(out chan<- prometheus.Metric, all []tokencheck.Status) {
	for i := range all {
		s := &all[i]
		namespace, pool := valid(s.Namespace), valid(s.Pool)
		collect(out, tokensSeries, s, namespace, pool)
		for kind := range s.Unproven.All {
			out <- prometheus.MustNewConstMetric(tokensUnproven, prometheus.GaugeValue, 1, namespace, pool, kind.String())
		}
		for _, state := range tokencheck.States {
			out <- prometheus.MustNewConstMetric(tokensState, prometheus.GaugeValue, truth(state == s.State), namespace, pool, string(state))
		}
	}
}
