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
	// libraryPrefixes are those of the workload "library".
	libraryPrefixes = 800
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
	// In the workload "intrusion" such a document arrives once in intrusionGap, in the mean.
	intrusionGap = 15 * time.Second
	// In the workload "bursts", requests arrive burstRate times as fast in the first burstLasts of each burstEvery, and slower
	// in the rest, so that the mean rate is that of "prefixes".
	burstEvery, burstLasts = 20 * time.Second, 5 * time.Second
	burstRate              = 3
)

// zipf draws from 0 to n-1 by Zipf's law. Unlike rand.Zipf it takes exponents below 1.
type zipf struct{ sums []float64 }

// newZipf is the popularity of n shared prefixes.
func newZipf(n int) zipf {
	z := zipf{sums: make([]float64, n)}
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

func (g *generator) documents(n int) [][]uint32 {
	docs := make([][]uint32, n)
	for i := range docs {
		docs[i] = g.text(nil, prefixTokens)
	}
	return docs
}

func (g *generator) prefixes(n int) []Request { return g.questions(n, sharedPrefixes) }

func (g *generator) library(n int) []Request { return g.questions(n, libraryPrefixes) }

func (g *generator) questions(n, prefixes int) []Request {
	docs, popular := g.documents(prefixes), newZipf(prefixes)
	var list []Request
	for at := time.Duration(0); len(list) < n; at += g.pause(prefixGap) {
		list = g.ask(list, at, docs[popular.draw(g)])
	}
	return list
}

func (g *generator) shift(n int) []Request {
	docs, popular := g.documents(sharedPrefixes), newZipf(sharedPrefixes)
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
	docs, popular := g.documents(sharedPrefixes), newZipf(sharedPrefixes)
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
	docs, popular := g.documents(sharedPrefixes), newZipf(sharedPrefixes)
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

func (g *generator) bursts(n int) []Request {
	docs, popular := g.documents(sharedPrefixes), newZipf(sharedPrefixes)
	// What the bursts bring more, the rest has less.
	const rest = (float64(burstEvery) - burstRate*float64(burstLasts)) / float64(burstEvery-burstLasts)
	var list []Request
	for at := time.Duration(0); len(list) < n; {
		list = g.ask(list, at, docs[popular.draw(g)])
		// The gap is drawn at rate 1 and spent at the rates of the times that it passes through.
		for left := g.pause(prefixGap); left > 0; {
			rate, ends := rest, burstEvery
			if at%burstEvery < burstLasts {
				rate, ends = burstRate, burstLasts
			}
			passes := min(time.Duration(float64(left)/rate)+1, ends-at%burstEvery)
			at += passes
			left -= time.Duration(float64(passes) * rate)
		}
	}
	return list
}

func (g *generator) intrusion(n int) []Request {
	list := g.agents(nil, n)
	last := time.Duration(0)
	for i := range list {
		last = max(last, list[i].At)
	}
	for at := g.pause(intrusionGap); at < last; at += g.pause(intrusionGap) {
		list = g.ask(list, at, g.text(nil, bulkTokens))
	}
	return list
}
