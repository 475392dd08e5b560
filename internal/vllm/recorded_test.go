package vllm

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// recorded holds the messages of real engines, a file for each release; see its README.
const recorded = "testdata/recorded"

// message is one recorded payload, with the number it was sent under and what had been asked of the engine before.
type message struct {
	asked   string
	seq     uint64
	payload []byte
}

// engine is what stands before a colon: how the engine was started.
func (m *message) engine() string {
	engine, _, ok := strings.Cut(m.asked, ": ")
	if !ok {
		return ""
	}
	return engine
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// recordings reads all files.
func recordings(t testing.TB) map[string][]message {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(recorded, "*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("recordings %v, %v", paths, err)
	}
	out := map[string][]message{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		release := strings.TrimSuffix(filepath.Base(path), ".txt")
		for line := range strings.Lines(string(data)) {
			fields := strings.SplitN(strings.TrimSpace(line), " ", 3)
			if len(fields) != 3 {
				t.Fatalf("%s: line %q", path, line)
			}
			seq, err := strconv.ParseUint(fields[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			payload, err := hex.DecodeString(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			out[release] = append(out[release], message{fields[2], seq, payload})
		}
	}
	return out
}

func TestDecodeReadsAllOfWhatEnginesSend(t *testing.T) {
	d, got := NewDecoder("VLLM"), kvevent.Batch{}
	for release, messages := range recordings(t) {
		for _, m := range messages {
			value, rest, err := generic(m.payload)
			if err != nil || len(rest) > 0 {
				t.Fatalf("%s, %s: %v", release, m.asked, err)
			}
			want, err := toBatch(value, "VLLM")
			if err != nil {
				t.Fatalf("%s, %s: the expectation: %v", release, m.asked, err)
			}
			if err := d.Decode(m.payload, &got); err != nil {
				t.Errorf("%s, %s: %v", release, m.asked, err)
				continue
			}
			if diff := cmp.Diff(want, got, same); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", release, m.asked, diff)
			}
			if rank := one(m.engine() == "rank 1 of two"); got.Skipped != 0 || got.Rank != rank || len(got.Events) == 0 {
				t.Errorf("%s, %s: %d parts skipped, rank %d, %d events", release, m.asked, got.Skipped, got.Rank, len(got.Events))
			}
		}
	}
}

// The prompts behind the recordings (cacheSteps of package judge) are numbers in a row, so that what an event must say is
// known without the engine.
func TestRecordedEventsSayWhatWasAsked(t *testing.T) {
	row := func(first, n int) []uint32 {
		out := make([]uint32, n)
		for i := range out {
			out[i] = uint32(first + i)
		}
		return out
	}
	for release, messages := range recordings(t) {
		t.Run(release, func(t *testing.T) {
			events := map[string][]kvevent.Event{}
			last := map[string]uint64{} // and one, by engine
			for _, m := range messages {
				var b kvevent.Batch
				if err := NewDecoder("VLLM").Decode(m.payload, &b); err != nil {
					t.Fatal(err)
				}
				events[m.asked] = append(events[m.asked], b.Events...)
				if m.seq < last[m.engine()] {
					t.Errorf("message %d follows %d", m.seq, last[m.engine()]-1)
				}
				last[m.engine()] = m.seq + 1
			}
			stores := func(asked string) kvevent.Event {
				t.Helper()
				stored := slices.DeleteFunc(slices.Clone(events[asked]), func(e kvevent.Event) bool { return e.Kind != kvevent.Stored })
				if len(stored) != 1 {
					t.Fatalf("%s: %d events store blocks", asked, len(stored))
				}
				return stored[0]
			}
			for _, prefix := range []string{"", "with options: "} {
				first, longer := stores(prefix+"a prompt of two blocks and a rest"), stores(prefix+"a longer prompt")
				if diff := cmp.Diff(row(10000, 64), first.Tokens); diff != "" || len(first.Hashes) != 2 || first.HasParent || first.BlockSize != 32 {
					t.Errorf("%sa first prompt: %+v", prefix, first)
				}
				if diff := cmp.Diff(row(10064, 64), longer.Tokens); diff != "" || !longer.HasParent || longer.Parent != first.Hashes[1] {
					t.Errorf("%sa longer prompt: %+v", prefix, longer)
				}
				if again := events[prefix+"the same prompt"]; len(again) != 0 {
					t.Errorf("%sa prompt that is cached: %+v", prefix, again)
				}
			}
			salted := stores("a salted prompt")
			if plain := stores("a prompt of two blocks and a rest"); salted.Hashes[0] == plain.Hashes[0] || salted.HasParent {
				t.Errorf("a salted prompt: %+v", salted)
			}
			// Releases before 0.17 do not say why two prompts of the same tokens have other hashes.
			if says := atLeast(release, 17); says != (salted.Salt == "salt") {
				t.Errorf("salt %q", salted.Salt)
			}
			twice := stores("the prompt of whole blocks again")
			whole := stores("a prompt of whole blocks")
			if len(twice.Hashes) != 1 || twice.Hashes[0] != whole.Hashes[1] || twice.Parent != whole.Hashes[0] {
				t.Errorf("the last block of a prompt is computed again: %+v", twice)
			}
			reset := events["a prompt after the reset"]
			if len(reset) != 2 || reset[0].Kind != kvevent.Cleared || reset[1].Kind != kvevent.Stored {
				t.Errorf("after a reset: %+v", reset)
			}
			removed := 0
			for _, e := range events["a third prompt of half the cache"] {
				if e.Kind == kvevent.Removed {
					removed += len(e.Hashes)
				}
			}
			if removed == 0 {
				t.Error("three prompts of half the cache evict nothing")
			}
		})
	}
}

func atLeast(release string, minor int) bool {
	n, err := strconv.Atoi(strings.Split(release, ".")[1])
	return err == nil && n >= minor
}
