package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

var (
	cacheRequests = prometheus.NewDesc("kvasir_response_cache_requests_total",
		"Requests through the proxy to pools with a response cache, by result: hit, similar, miss, or why they were not looked up.",
		[]string{"namespace", "pool", "result"}, nil)
	cacheAnswers = prometheus.NewDesc("kvasir_response_cache_answers_total",
		"Answers of engines to requests that were not in the response cache, by result: stored, or why not.",
		[]string{"namespace", "pool", "result"}, nil)
	cacheRemoved = prometheus.NewDesc("kvasir_response_cache_removed_total",
		"Answers that were removed from the response cache to make room, or because they were too old.",
		[]string{"namespace", "pool", "reason"}, nil)
	cacheBytes = prometheus.NewDesc("kvasir_response_cache_bytes",
		"Memory that the response cache takes, with answers under way.", ofPool, nil)
	cacheLimit = prometheus.NewDesc("kvasir_response_cache_limit_bytes",
		"Memory that the response cache can take: maxBytes of the policy, or less if the picker has less for its caches.", ofPool, nil)
	cacheVectors = prometheus.NewDesc("kvasir_response_cache_vectors",
		"Answers in the response cache that are found by similar questions, too.", ofPool, nil)
	cacheEmbeddings = prometheus.NewDesc("kvasir_response_cache_embeddings_total",
		"Questions that were to be compared by similarity, by result: embedded, or why they were not compared.",
		[]string{"namespace", "pool", "result"}, nil)
	cacheModels = prometheus.NewDesc("kvasir_response_cache_embedding_model_changes_total",
		"Changes of the model of the embedding service, after which no vectors from before are compared.", ofPool, nil)
	cacheSimilarity = prometheus.NewDesc("kvasir_response_cache_similarity",
		"Similarity of a question to the most similar one in the response cache that could answer it.", ofPool, nil)
	cacheStore = prometheus.NewDesc("kvasir_response_cache_store_total",
		"Questions to the store that response caches share, and answers for it, by result.", []string{"namespace", "pool", "result"}, nil)
	cacheEntries = prometheus.NewDesc("kvasir_response_cache_entries", "Answers in the response cache.", ofPool, nil)
)

// collectResponses emits the metrics of response caches.
func collectResponses(out chan<- prometheus.Metric, all []picker.ResponseStats) {
	for i := range all {
		s := &all[i]
		emit := func(desc *prometheus.Desc, kind prometheus.ValueType, value int64, label ...string) {
			out <- prometheus.MustNewConstMetric(desc, kind, float64(value), append([]string{s.Namespace, s.Pool}, label...)...)
		}
		for result, n := range s.Results {
			emit(cacheRequests, prometheus.CounterValue, n, respcache.Result(result).String())
		}
		for result, n := range s.Storings {
			emit(cacheAnswers, prometheus.CounterValue, n, respcache.Storing(result).String())
		}
		emit(cacheRemoved, prometheus.CounterValue, s.Evicted, "room")
		emit(cacheRemoved, prometheus.CounterValue, s.Expired, "age")
		emit(cacheBytes, prometheus.GaugeValue, s.Bytes)
		emit(cacheLimit, prometheus.GaugeValue, s.Limit)
		emit(cacheEntries, prometheus.GaugeValue, int64(s.Entries))
		if s.Shares {
			for result, n := range s.Storages {
				emit(cacheStore, prometheus.CounterValue, n, respcache.Storage(result).String())
			}
		}
		if !s.Compares {
			continue
		}
		emit(cacheVectors, prometheus.GaugeValue, int64(s.Vectors))
		for result, n := range s.Embeddings {
			emit(cacheEmbeddings, prometheus.CounterValue, n, respcache.Embedding(result).String())
		}
		emit(cacheModels, prometheus.CounterValue, s.Models)
		buckets, below := map[float64]uint64{}, uint64(0)
		for class, bound := range respcache.SimilarityBounds {
			below += uint64(s.Similarity.Counts[class])
			buckets[bound] = below
		}
		below += uint64(s.Similarity.Counts[len(respcache.SimilarityBounds)])
		out <- prometheus.MustNewConstHistogram(cacheSimilarity, below, s.Similarity.Sum, buckets, s.Namespace, s.Pool)
	}
}
