package lab

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// tokenTime is the assumed time of a generated token without measurements: in the timestamps of generated
// conversations, and when think times are read off timestamps.
const tokenTime = 20 * time.Millisecond

// nominal is how long an answer is taken to last.
func nominal(output int) time.Duration { return time.Second/2 + time.Duration(output)*tokenTime }

// generators make n requests from a seed. At speed 1 they load eight 8B engines on H100s about half.
var generators = map[string]func(g *generator, n int) []Request{
	"chat":      (*generator).chat,
	"agentic":   (*generator).agentic,
	"rag":       (*generator).rag,
	"fanout":    (*generator).fanout,
	"prefixes":  (*generator).prefixes,
	"library":   (*generator).library,
	"shift":     (*generator).shift,
	"surge":     (*generator).surge,
	"bulk":      (*generator).bulk,
	"documents": (*generator).papers,
	"bursts":    (*generator).bursts,
	"intrusion": (*generator).intrusion,
}

// Generated are the names of the workloads that Generate makes.
func Generated() []string {
	var names []string
	for name := range generators {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Generate makes a workload of n requests:
//
//	chat      conversations of a few short turns under three system prompts
//	agentic   long conversations whose prompts grow by tool results, with short pauses; a few are very long
//	rag       one system prompt, then one of 400 documents; some are requested much more often than others
//	fanout    bursts of requests that share a long prefix that no pod has computed yet
//	prefixes  80 prefixes of 6,600 tokens by Zipf's law, with a short question each
//	library   the same with 800 prefixes, more than the caches of most fleets hold together
//	shift     prefixes, with another order of popularity every half minute
//	surge     prefixes; suddenly half of the requests are for a new one
//	bulk      prefixes, and every fiftieth request is a document of 60,000 tokens that nothing shares
//	documents documents of about 8,000 tokens that nothing shares, with answers of about 400 tokens
//	bursts    prefixes; in five seconds of twenty, requests arrive at three times the mean rate
//	intrusion agentic, and now and then a document of 60,000 tokens that nothing shares
//
// It fails for a name it does not know.
func Generate(name string, n int, seed uint64) (*Workload, error) {
	generate, ok := generators[name]
	if !ok {
		return nil, fmt.Errorf("unknown workload %q (known: %v)", name, Generated())
	}
	g := &generator{rng: rand.New(rand.NewPCG(seed, 0x67656e6572617465))}
	list := generate(g, n)
	slices.SortStableFunc(list, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	w := &Workload{
		Name: name, Requests: list, Sessions: g.sessions,
		drawn: func(seed uint64) (*Workload, error) { return Generate(name, n, seed) },
		more:  func(n int) (*Workload, error) { return Generate(name, n, seed) },
	}
	return w.First(n), nil
}

// generator draws what workloads are made of.
type generator struct {
	rng      *rand.Rand
	texts    int // made so far
	sessions int
}

// text is n tokens that no other text shares.
func (g *generator) text(dst []uint32, n int) []uint32 {
	for n > 0 {
		k := min(n, trace.BlockTokens)
		dst = trace.AppendTokens(dst, []int{g.texts}, k)
		g.texts++
		n -= k
	}
	return dst
}

// length is log-normal with a median and a spread (1 is wide), within [1, 30 × median].
func (g *generator) length(median, spread float64) int {
	x := median * math.Exp(spread*g.rng.NormFloat64())
	return int(math.Round(math.Min(math.Max(1, x), 30*median)))
}

// pause is exponential.
func (g *generator) pause(mean time.Duration) time.Duration {
	return time.Duration(g.rng.ExpFloat64() * float64(mean))
}

// turnsOf is geometric with a mean, at least 1.
func (g *generator) turnsOf(mean float64) int {
	return 1 + int(math.Log(1-g.rng.Float64())/math.Log(1-1/mean))
}

// conversation is a session whose prompts grow: each turn's prompt is the previous one with its answer and new text.
type conversation struct {
	start         time.Duration
	first         []uint32 // what everything begins with
	turns         int
	said, answer  func() int
	think         time.Duration // mean
	longestPrompt int
}

// add appends a conversation's requests. They share one array of tokens.
func (g *generator) add(list []Request, c *conversation) []Request {
	session := g.sessions
	g.sessions++
	tokens := slices.Clone(c.first)
	at := c.start
	for turn := range c.turns {
		tokens = g.text(tokens, c.said())
		if len(tokens) > c.longestPrompt {
			break
		}
		r := Request{At: at, Session: session, Turn: turn, Input: len(tokens), Output: c.answer(), tokens: tokens, known: new(known)}
		list = append(list, r)
		tokens = enginemodel.AppendAnswer(tokens, r.tokens, r.Output)
		at += nominal(r.Output) + g.pause(c.think)
	}
	return list
}

func (g *generator) chat(n int) []Request {
	systems := [][]uint32{g.text(nil, 300), g.text(nil, 800), g.text(nil, 2000)}
	var list []Request
	for start := time.Duration(0); len(list) < n+n/4; start += g.pause(350 * time.Millisecond) {
		list = g.add(list, &conversation{
			start: start, first: systems[g.rng.IntN(len(systems))], turns: g.turnsOf(5),
			said: func() int { return g.length(120, 1) }, answer: func() int { return g.length(220, 0.7) },
			think: 20 * time.Second, longestPrompt: 60_000,
		})
	}
	return list
}

func (g *generator) agentic(n int) []Request { return g.agents(nil, n) }

// agents appends agentic conversations until the list has enough for n requests in the order of their arrival.
func (g *generator) agents(list []Request, n int) []Request {
	tools := g.text(nil, 3000)
	for start := time.Duration(0); len(list) < n+n/2; start += g.pause(4 * time.Second) {
		turns := g.turnsOf(15)
		if g.rng.IntN(20) == 0 {
			turns *= 5
		}
		list = g.add(list, &conversation{
			start: start, first: g.text(slices.Clone(tools), g.length(4000, 0.8)), turns: turns,
			said: func() int { return g.length(700, 1.1) }, answer: func() int { return g.length(140, 0.7) },
			think: 3 * time.Second, longestPrompt: 110_000,
		})
	}
	return list
}

func (g *generator) rag(n int) []Request {
	const documents, skew = 400, 1.1
	system := g.text(nil, 1000)
	docs := make([][]uint32, documents)
	for i := range docs {
		docs[i] = g.text(slices.Clone(system), 1000+g.length(4000, 0.5))
	}
	zipf := rand.NewZipf(g.rng, skew, 1, documents-1)
	var list []Request
	at := time.Duration(0)
	for range n {
		tokens := g.text(slices.Clone(docs[zipf.Uint64()]), g.length(60, 0.6))
		list = append(list, Request{At: at, Session: g.sessions, Input: len(tokens), Output: g.length(180, 0.6), tokens: tokens,
			known: new(known)})
		g.sessions++
		at += g.pause(60 * time.Millisecond)
	}
	return list
}

func (g *generator) papers(n int) []Request {
	var list []Request
	at := time.Duration(0)
	for range n {
		tokens := g.text(nil, g.length(8000, 0.5))
		list = append(list, Request{At: at, Session: g.sessions, Input: len(tokens), Output: g.length(400, 0.5), tokens: tokens,
			known: new(known)})
		g.sessions++
		at += g.pause(90 * time.Millisecond)
	}
	return list
}

func (g *generator) fanout(n int) []Request {
	var list []Request
	for burst := time.Duration(0); len(list) < n; burst += g.pause(4 * time.Second) {
		shared := g.text(nil, g.length(16_000, 0.5))
		at := burst
		for range 4 + g.rng.IntN(28) {
			tokens := g.text(slices.Clone(shared), g.length(400, 0.7))
			list = append(list, Request{At: at, Session: g.sessions, Input: len(tokens), Output: g.length(150, 0.5), tokens: tokens,
				known: new(known)})
			g.sessions++
			at += g.pause(40 * time.Millisecond)
		}
	}
	return list
}
