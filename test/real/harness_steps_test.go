package real

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// step is a line of what the plugin of an engine has written down: one in the life of a request or of a block.
type step struct {
	At      float64  `json:"at"` // seconds since 1970
	What    string   `json:"what"`
	Request string   `json:"request"`
	Tokens  int      `json:"tokens"`
	Hashes  []string `json:"hashes"`
	Hash    string   `json:"hash"`
	By      string   `json:"by"`
	// told is when the event of a removal or a store was given to ZeroMQ.
	told float64
}

// history is what the schedulers of some engines did, by the ids that clients gave their requests.
type history struct {
	came, found map[string]step
	changed     map[string][]step // stored and removed, by engine and hash, the oldest first
	pod         map[string]string // that had the request
}

// clientID is in the id that an engine gives a request.
var clientID = regexp.MustCompile(`[0-9a-f]{16}`)

// historySince reads what the engines have done since a time.
func historySince(engines []*engine, since time.Time) (*history, error) {
	h := &history{came: map[string]step{}, found: map[string]step{}, changed: map[string][]step{}, pod: map[string]string{}}
	for i, e := range engines {
		files, err := filepath.Glob(filepath.Join(e.truth, "*.jsonl"))
		if err != nil {
			return nil, fmt.Errorf("listing the steps of %s: %w", e.name, err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("reading the steps of %s: %w", e.name, err)
			}
			h.read(raw, fmt.Sprintf("pod-%d", i), seconds(since))
		}
	}
	return h, nil
}

// read takes the lines of one engine.
func (h *history) read(raw []byte, pod string, since float64) {
	var unpublished []step // in no batch yet
	var queue [][]step     // batches that the publisher has yet to send
	for line := range bytes.Lines(raw) {
		var s step
		if json.Unmarshal(line, &s) != nil || s.At < since { // the last line can be incomplete
			continue
		}
		switch id := clientID.FindString(s.Request); s.What {
		case "came":
			h.came[id], h.pod[id] = s, pod
		case "found":
			h.found[id] = s
		case "removed":
			unpublished = append(unpublished, s)
		case "stored":
			for _, hash := range s.Hashes {
				unpublished = append(unpublished, step{At: s.At, What: s.What, Request: s.Request, Hash: hash})
			}
		case "published":
			queue = append(queue, unpublished)
			unpublished = nil
		case "sent":
			if len(queue) == 0 {
				continue // published before the time asked for
			}
			for _, one := range queue[0] {
				one.told = s.At
				h.changed[pod+one.Hash] = append(h.changed[pod+one.Hash], one)
			}
			queue = queue[1:]
		}
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// story says when what happened to a request and to the first block that was predicted and not found, or found and not
// predicted, in milliseconds after the request was sent.
func (h *history) story(a answer) string {
	after := func(at float64) int { return int(1000 * (at - seconds(a.sent))) }
	found := h.found[a.id]
	story := fmt.Sprintf("%s; came at %d, found %d tokens at %d", a.header.Get("x-kvasir-reason"), after(h.came[a.id].At), found.Tokens, after(found.At))
	if i := min(a.delivered, a.predicted) / blockTokens; i < len(found.Hashes) {
		for _, one := range h.changed[h.pod[a.id]+found.Hashes[i]] {
			story += fmt.Sprintf(", block %d %s at %d and told at %d", i, one.What, after(one.At), after(one.told))
		}
	}
	return story
}

// Why a prediction was not what the engine found.
const (
	asPredicted = "exact"
	// evictedBefore: the block was evicted before the client sent the request, and the event sent after it. vLLM publishes
	// the events of a step at the step's end, from another thread.
	evictedBefore = "evicted before, told afterwards"
	// evictedOnTheWay: between the client and the engine's scheduler.
	evictedOnTheWay = "evicted on the way to the engine"
	// evictedInQueue: in the scheduler, before the request's turn.
	evictedInQueue = "evicted in the engine's queue"
	notExplained   = "not explained"
)

// eventTransit is how long an event that was given to ZeroMQ can be on its way to the index, in seconds: through a thread of the engine's
// process, a socket and the picker, on a machine whose cores are busy. A request that is sent meanwhile cannot be predicted by it.
const eventTransit = 0.010

// cause explains the difference between an answer's predicted and delivered tokens. An eviction explains it if the first
// block that was predicted and not found was evicted, and no event can have reported that when the request was sent. The blocks behind
// it say nothing: they can still be there, in more than one copy.
func (h *history) cause(a answer) (cause, evictedFor string) {
	if a.predicted == a.delivered {
		return asPredicted, ""
	}
	came, found := h.came[a.id], h.found[a.id]
	if a.predicted < a.delivered || found.Tokens != a.delivered || len(found.Hashes) < a.predicted/blockTokens {
		return notExplained, ""
	}
	var last step // what happened to the block before it was looked up
	for _, one := range h.changed[h.pod[a.id]+found.Hashes[a.delivered/blockTokens]] {
		if one.At <= found.At {
			last = one
		}
	}
	if last.What != "removed" || last.told+eventTransit < seconds(a.sent) {
		return notExplained, ""
	}
	evictedFor = clientID.FindString(last.By)
	switch {
	case last.At < seconds(a.sent):
		return evictedBefore, evictedFor
	case last.At < came.At:
		return evictedOnTheWay, evictedFor
	}
	return evictedInQueue, evictedFor
}
