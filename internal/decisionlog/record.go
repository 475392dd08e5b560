// Package decisionlog keeps what pickers decided and what became of it, one JSON object a line.
//
// A line is also a line of a request trace in the format that Mooncake published (timestamp, input_length,
// output_length, hash_ids), so that whatever reads such traces replays it. It carries no text, no token, no user and no
// key of a cache: prefixes and sessions are numbers that mean something in one log only, hashed with a salt of its own.
package decisionlog

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// BlockTokens is how many prompt tokens one block id of a line covers.
const BlockTokens = 512

// Record is a decision and its outcome.
type Record struct {
	// Timestamp of the request's arrival, milliseconds since 1970.
	Timestamp int64 `json:"timestamp"`
	// Input and Output are the lengths of prompt and answer in tokens; Output is 0 when the answer did not report it.
	Input  int `json:"input_length"`
	Output int `json:"output_length"`
	// Blocks are chained ids of the prompt's blocks of 512 tokens, ceil(Input/512) of them; where the tokens are not known,
	// of as much text as should be 512 tokens. Equal ids mean equal prefixes. Prompts that are too short for a block have
	// none, and neither do prompts with only a known beginning.
	Blocks []uint64 `json:"hash_ids"`
	// Session is the conversation; 0 without one.
	Session uint64 `json:"session,omitempty"`
	// Request is the request's id, by which the client and the engine know it too.
	Request string `json:"request,omitempty"`

	Pool  string `json:"pool"`
	Model string `json:"model"`
	// Route is the ModelRoute that led to the pool, its rule and why; Asked the name of the model that the client has used. Both are empty
	// without a route.
	Route string `json:"route,omitempty"`
	Asked string `json:"asked,omitempty"`
	// Hooks are the outcomes of the policy's steps, by pool: namespace/pool step=applied other=skipped. It is empty without steps.
	Hooks string `json:"hooks,omitempty"`
	// Strategy that was applied, and where the prompt's ids came from.
	Strategy string `json:"strategy"`
	Tokens   string `json:"tokens"`
	// Candidates are the endpoints that were scored, the best first, at most MaxCandidates; Scored is how many there were.
	Candidates []Candidate `json:"candidates"`
	Scored     int         `json:"scored"`
	// Plan is how a hand-off or a pull compared with serving the request at one endpoint; absent where neither can be.
	Plan *Plan `json:"plan,omitempty"`
	// Endpoint is pod/rank of the one that served, or had the request last, at that Attempt, from 0.
	Endpoint string `json:"endpoint,omitempty"`
	Attempt  int    `json:"attempt"`

	// Outcome is completed, client_gone, failed, rejected or unreported; or refused, by the picker, for Reason: the code of
	// the answer; or answered, from the response cache. A request that a step has refused or the cache has answered has no prompt: Input
	// is 0. One that was refused, or left while waiting in the picker, has no candidates.
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	// Cached is how many prompt tokens the engine found in its cache, -1 when it did not report it.
	Cached int `json:"cached"`
	// Miss is why nothing was found of what the index had; empty where something was.
	Miss string `json:"miss,omitempty"`
	// Waited in the picker, until the FirstToken, and until the end, in milliseconds; FirstToken is 0 for answers that
	// are not streamed.
	Waited     float64 `json:"waited_ms"`
	FirstToken float64 `json:"first_token_ms,omitempty"`
	Duration   float64 `json:"duration_ms"`
}

// MaxCandidates is the most candidates that a record lists.
const MaxCandidates = 8

// Candidate is an endpoint as the strategy saw it.
type Candidate struct {
	// Endpoint is pod/rank.
	Endpoint string `json:"endpoint"`
	// Matched and Confirmed prompt tokens.
	Matched   int `json:"matched"`
	Confirmed int `json:"confirmed"`
	// InFlight requests, those of them that were Decoding, and the uncached Pending tokens before this request.
	InFlight int     `json:"inflight"`
	Decoding int     `json:"decoding,omitempty"`
	Pending  float64 `json:"pending"`
	// Waiting requests and KVUsage, 0 to 1, by the engine's last report; 0 where that was too old.
	Waiting int     `json:"waiting,omitempty"`
	KVUsage float64 `json:"kv_usage,omitempty"`
	// Rate is how fast the endpoint prefilled, as learned so far, tokens/s; 0 where nothing was.
	Rate float64 `json:"rate,omitempty"`
	// Delay is the way to the endpoint and what bringing in an adapter should have taken, milliseconds.
	Delay float64 `json:"delay_ms,omitempty"`
	// Predicted time to the first token from there, milliseconds after the pick: to be compared with the record's
	// FirstToken for the candidate that served.
	Predicted float64 `json:"predicted_ms"`
	// Cost by the strategy, in its unit.
	Cost float64 `json:"cost"`
}

// Plan compares the ways to serve a request in a pool with roles, or whose engines load blocks of each other. Costs are in milliseconds, 0
// where nothing was compared.
type Plan struct {
	// HandedOver: one endpoint was to prefill, and another one to decode; Because is the reason if not (api.Plans).
	HandedOver bool   `json:"handed_over"`
	Because    string `json:"because,omitempty"`
	// Alone, Prefill and Decode are pod/rank of the endpoints.
	Alone   string `json:"alone"`
	Prefill string `json:"prefill,omitempty"`
	Decode  string `json:"decode,omitempty"`
	// AloneCost is that of the request at one endpoint. The other costs are of a hand-off, and add up.
	AloneCost    float64 `json:"alone_ms"`
	PrefillCost  float64 `json:"prefill_ms,omitempty"`
	TransferCost float64 `json:"transfer_ms,omitempty"`
	DecodeCost   float64 `json:"decode_ms,omitempty"`
	// Pull is pod/rank of the endpoint that would load a part of the prompt from Peer, PullCost the cost of that, and PullTransferCost the
	// part for the transfer. Because is pull if it was chosen.
	Pull             string  `json:"pull,omitempty"`
	Peer             string  `json:"peer,omitempty"`
	PullCost         float64 `json:"pull_ms,omitempty"`
	PullTransferCost float64 `json:"pull_transfer_ms,omitempty"`
}

// Salt roots the numbers of one log.
type Salt uint64

// ID is a number for a key or a session: 53 bits, which every JSON reader keeps. 0 stays 0.
func (s Salt) ID(key uint64) uint64 {
	if key == 0 {
		return 0
	}
	// The finaliser of SplitMix64, once for each input.
	x := mix(mix(uint64(s)) ^ key)
	return max(1, x>>11)
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// AppendBlocks appends the ids of a prompt of so many tokens. key returns the chained key of the prompt's first n tokens,
// as near to n as there is one, and not beyond.
func (s Salt) AppendBlocks(dst []uint64, tokens int, key func(n int) uint64) []uint64 {
	for end := BlockTokens; end < tokens+BlockTokens; end += BlockTokens {
		n := min(end, tokens)
		// A last part without a full block of its own has the key of the part before: its length distinguishes them.
		dst = append(dst, s.ID(mix(key(n))^uint64(n)))
	}
	return dst
}

// ErrFormat is wrapped by errors about a log that does not follow its format.
var ErrFormat = errors.New("not a decision log")

const (
	maxLine    = 1 << 20
	maxRecords = 4 << 20
)

// Skipped are the lines of a log that are no records: a process that was killed leaves one.
type Skipped struct {
	// Lines is how many there are.
	Lines int
	// First are the first of them, at most maxTold.
	First []Line
}

// maxTold bounds how many lines are reported one by one.
const maxTold = 10

// Line is a line, numbered from 1, and its error.
type Line struct {
	Number int
	Err    error
}

func (s *Skipped) add(number int, err error) {
	if s.Lines++; len(s.First) < maxTold {
		s.First = append(s.First, Line{number, err})
	}
}

// String describes the lines in a sentence; empty without any.
func (s *Skipped) String() string {
	if s.Lines == 0 {
		return ""
	}
	var told strings.Builder
	fmt.Fprintf(&told, "lines that are no records: %d", s.Lines)
	for _, l := range s.First {
		fmt.Fprintf(&told, "; line %d: %v", l.Number, l.Err)
	}
	if s.Lines > len(s.First) {
		told.WriteString("; ...")
	}
	return told.String()
}

// Read reads a log, sorted by time: lines are written when requests end. Lines that are no records are skipped and counted.
// It fails with ErrFormat if no line is a record.
func Read(r io.Reader) (list []Record, skipped Skipped, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	n := 1
	for ; lines.Scan(); n++ {
		if len(list) == maxRecords {
			return nil, skipped, fmt.Errorf("%w: more than %d lines", ErrFormat, maxRecords)
		}
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var one Record
		err := json.Unmarshal(lines.Bytes(), &one)
		if err == nil {
			err = one.check()
		}
		if err != nil {
			skipped.add(n, err)
			continue
		}
		list = append(list, one)
	}
	if err := lines.Err(); err != nil {
		return nil, skipped, fmt.Errorf("reading a decision log: line %d: %w", n, err)
	}
	if len(list) == 0 && skipped.Lines > 0 {
		return nil, skipped, fmt.Errorf("%w: %s", ErrFormat, skipped.String())
	}
	slices.SortStableFunc(list, func(a, b Record) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	return list, skipped, nil
}

func (r *Record) check() error {
	switch {
	case r.Timestamp <= 0:
		return fmt.Errorf("it arrives at %d ms", r.Timestamp)
	case r.Input < 0 || r.Output < 0:
		return fmt.Errorf("%d tokens in and %d out", r.Input, r.Output)
	case len(r.Blocks) != 0 && len(r.Blocks) != (r.Input+BlockTokens-1)/BlockTokens:
		return fmt.Errorf("%d ids for %d tokens", len(r.Blocks), r.Input)
	}
	return nil
}
