package lab

import (
	"math"
	"slices"
	"sort"
	"time"
)

// Workloads of shared prefixes: a request is one of some prefixes and a short question of its own. They are what a fleet
// that makes too many copies does worst at: the prefixes fit its caches together, but not those of each pod.

const (
	sharedPrefixes = 80
	prefixTokens   = 6600
	// prefixSkew is the exponent of the prefixes' popularity by Zipf's law.
	prefixSkew = 0.9
	// prefixGap is the mean time between arrivals at speed 1.
	prefixGap = 40 * time.Millisecond
	// shiftEvery is how often the order of popularity changes in the workload "shift".
	shiftEvery = 30 * time.Second
	// In the workload "surge", a prefix that had no request before gets half of the requests after surgeAfter of them.
	surgeAfter = 1.0 / 3
	// In the workload "bulk", one request in bulkEvery is a document of bulkTokens that nothing else shares.
	bulkEvery, bulkTokens = 50, 60_000
)

// zipf draws from 0 to n-1 by Zipf's law. Unlike rand.Zipf it takes exponents below 1.
type zipf struct{ sums []float64 }

// newZipf is the popularity of the shared prefixes.
func newZipf() zipf {
	z := zipf{sums: make([]float64, sharedPrefixes)}
	sum := 0.0
	for i := range z.sums {
		sum += math.Pow(float64(i+1), -prefixSkew)
		z.sums[i] = sum
	}
	return z
}

func (z zipf) draw(g *generator) int {
	x := g.rng.Float64() * z.sums[len(z.sums)-1]
	return min(sort.SearchFloat64s(z.sums, x), len(z.sums)-1)
}

// ask appends a request for a prompt with a question of its own.
func (g *generator) ask(list []Request, at time.Duration, prompt []uint32) []Request {
	tokens := g.text(slices.Clone(prompt), g.length(60, 0.6))
	list = append(list, Request{
		At: at, Session: g.sessions, Input: len(tokens), Output: g.length(120, 0.6), tokens: tokens, known: new(known),
	})
	g.sessions++
	return list
}

func (g *generator) documents() [][]uint32 {
	docs := make([][]uint32, sharedPrefixes)
	for i := range docs {
		docs[i] = g.text(nil, prefixTokens)
	}
	return docs
}

func (g *generator) prefixes(n int) []Request {
	docs, popular := g.documents(), newZipf()
	var list []Request
	for at := time.Duration(0); len(list) < n; at += g.pause(prefixGap) {
		list = g.ask(list, at, docs[popular.draw(g)])
	}
	return list
}

func (g *generator) shift(n int) []Request {
	docs, popular := g.documents(), newZipf()
	var list []Request
	next := shiftEvery
	for at := time.Duration(0); len(list) < n; at += g.pause(prefixGap) {
		if at >= next {
			g.rng.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
			next += shiftEvery
		}
		list = g.ask(list, at, docs[popular.draw(g)])
	}
	return list
}

func (g *generator) surge(n int) []Request {
	docs, popular := g.documents(), newZipf()
	sudden := g.text(nil, prefixTokens)
	var list []Request
	for at := time.Duration(0); len(list) < n; at += g.pause(prefixGap) {
		if doc := docs[popular.draw(g)]; len(list) < int(surgeAfter*float64(n)) || g.rng.IntN(2) == 0 {
			list = g.ask(list, at, doc)
		} else {
			list = g.ask(list, at, sudden)
		}
	}
	return list
}

func (g *generator) bulk(n int) []Request {
	docs, popular := g.documents(), newZipf()
	var list []Request
	for at := time.Duration(0); len(list) < n; at += g.pause(prefixGap) {
		if g.rng.IntN(bulkEvery) == 0 {
			list = g.ask(list, at, g.text(nil, bulkTokens))
		} else {
			list = g.ask(list, at, docs[popular.draw(g)])
		}
	}
	return list
}
