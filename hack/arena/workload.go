//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/lab"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// request is one that the arena sends: a chat of one message.
type request struct {
	at      time.Duration // since the beginning of the load
	session string
	body    []byte
}

// drawWorkload is the first n requests of a workload of the lab under a seed. "trace" is the recorded conversation trace.
func drawWorkload(name string, n int, seed uint64) (*lab.Workload, error) {
	if name != "trace" {
		return lab.Generate(name, n, seed)
	}
	list, err := trace.Slice()
	if err != nil {
		return nil, err
	}
	return lab.FromTrace(name, list), nil
}

// arrivals are the times at which requests arrive, scaled to a mean rate per second. Where the workload leaves the time
// within a tick open, the seed decides.
func arrivals(w *lab.Workload, seed uint64, rate float64) ([]time.Duration, error) {
	at := w.Arrivals(seed, 1)
	n := len(at)
	if n < 2 || at[n-1] <= at[0] {
		return nil, errors.New("a workload needs requests at two different times")
	}
	scale := float64(n-1) / rate / (at[n-1] - at[0]).Seconds()
	out := make([]time.Duration, n)
	for i := range at {
		out[i] = time.Duration(float64(at[i]-at[0]) * scale)
	}
	return out, nil
}

// requests makes what is sent of a workload: the same of the same seed for every router. Requests that do not fit the
// engines' context, in tokens, are left out.
func requests(name string, n int, seed uint64, rate float64, words []string, context int) ([]request, error) {
	w, err := drawWorkload(name, n, seed)
	if err != nil {
		return nil, err
	}
	w = w.Fitting(context - templateTokens).First(n)
	at, err := arrivals(w, seed, rate)
	if err != nil {
		return nil, err
	}
	out := make([]request, len(at))
	for i := range out {
		r := &w.Requests[i]
		out[i] = request{at: at[i], session: strconv.Itoa(r.Session), body: body(r.Prompt(), r.Output, words)}
	}
	return out, nil
}

// templateTokens is more than the chat template adds to a message, in tokens.
const templateTokens = 64

// body is a streamed chat request. Each token of the prompt is a word.
func body(tokens []uint32, output int, words []string) []byte {
	b := make([]byte, 0, 200+8*len(tokens))
	b = append(b, `{"model":"`+model+`","messages":[{"role":"user","content":"`...)
	for _, id := range tokens {
		b = append(b, words[int(id)%len(words)]...)
	}
	b = append(b, `"}],"max_tokens":`...)
	b = strconv.AppendInt(b, int64(output), 10)
	return append(b, `,"stream":true,"ignore_eos":true,"temperature":0}`...)
}

// vocabulary are words that are one token each, wherever they follow each other.
func vocabulary(text vllmsim.Text) ([]string, error) {
	ids, err := vllmsim.Palette(text, vllmsim.WordsVocabulary)
	if err != nil {
		return nil, err
	}
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = text.Decode([]uint32{id})
		if quoted, err := json.Marshal(words[i]); err != nil || len(quoted) != len(words[i])+2 {
			return nil, fmt.Errorf("the word %q needs escapes", words[i])
		}
	}
	return words, nil
}
