// Package trace reads request traces, and makes prompts of them.
//
// Traces are in the format that Mooncake published: one JSON object a line with an arrival time, the lengths of
// prompt and answer, and the chained ids of the prompt's blocks of 512 tokens. Equal ids mean equal prefixes; the
// tokens themselves are not published, so that this package makes them up, the same ones for the same id.
package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// BlockTokens is how many prompt tokens an id of a trace covers; the last id of a request can cover fewer.
	BlockTokens = 512
	// Tick is the grain of the trace's arrival times.
	Tick = 3 * time.Second

	maxTokens   = 1 << 20 // of a prompt or an answer
	maxRequests = 1 << 20
	maxLine     = 1 << 20 // bytes
)

// ErrFormat is wrapped by errors about a trace that does not follow its format.
var ErrFormat = errors.New("not a trace")

// Request is one line of a trace.
type Request struct {
	// Timestamp of the arrival in milliseconds, a multiple of the tick or nearly so.
	Timestamp int64 `json:"timestamp"`
	// Input and Output are lengths in tokens. Output is 0 where nothing was generated.
	Input  int `json:"input_length"`
	Output int `json:"output_length"`
	// Blocks are the ids of the prompt's blocks, ceil(Input/512) of them.
	Blocks []int `json:"hash_ids"`
	// Session is the number of the request's conversation; nil in traces without sessions.
	Session *int `json:"session,omitempty"`
}

// Read reads an entire trace and checks it: times do not go back, every request has the blocks its length requires, and no
// block follows two different ones, so that equal ids mean equal prefixes. It fails with ErrFormat.
func Read(r io.Reader) ([]Request, error) {
	var list []Request
	parents := map[int]int{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for n := 1; lines.Scan(); n++ {
		if len(list) == maxRequests {
			return nil, fmt.Errorf("%w: more than %d requests", ErrFormat, maxRequests)
		}
		var q Request
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrFormat, n, err)
		}
		if err := q.check(parents); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrFormat, n, err)
		}
		if len(list) > 0 && q.Timestamp < list[len(list)-1].Timestamp {
			return nil, fmt.Errorf("%w: line %d arrives before the line above it", ErrFormat, n)
		}
		list = append(list, q)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading a trace: %w", err)
	}
	return list, nil
}

// check a request by itself, and its blocks' order against those seen before.
func (q *Request) check(parents map[int]int) error {
	switch {
	case q.Timestamp < 0:
		return fmt.Errorf("it arrives at %d ms", q.Timestamp)
	case q.Input < 1 || q.Input > maxTokens || q.Output < 0 || q.Output > maxTokens:
		return fmt.Errorf("%d tokens in and %d out, want at least 1 in and at most %d of each", q.Input, q.Output, maxTokens)
	case len(q.Blocks) != (q.Input+BlockTokens-1)/BlockTokens:
		return fmt.Errorf("%d block ids for %d tokens", len(q.Blocks), q.Input)
	}
	parent := -1
	for _, id := range q.Blocks {
		if id < 0 {
			return fmt.Errorf("the block id %d is negative", id)
		}
		if was, ok := parents[id]; ok && was != parent {
			return fmt.Errorf("block %d follows block %d here and block %d above", id, parent, was)
		}
		parents[id] = parent
		parent = id
	}
	return nil
}

// Arrivals are the requests' arrival times since the first tick: the requests of one tick are spread evenly over it,
// in the trace's order, the first at half its share.
func Arrivals(list []Request) []time.Duration {
	out := make([]time.Duration, len(list))
	for from := 0; from < len(list); {
		to := from + 1
		for to < len(list) && list[to].Timestamp == list[from].Timestamp {
			to++
		}
		start := time.Duration(list[from].Timestamp-list[0].Timestamp) * time.Millisecond
		for i := from; i < to; i++ {
			out[i] = start + Tick*time.Duration(2*(i-from)+1)/time.Duration(2*(to-from))
		}
		from = to
	}
	return out
}
