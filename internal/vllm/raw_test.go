package vllm

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// fold is the hash in the form of the batch.
func (h RawHash) fold() kvevent.Hash {
	if h.Digest != nil {
		return kvevent.Hash(binary.BigEndian.Uint64(h.Digest[len(h.Digest)-8:]))
	}
	return kvevent.Hash(h.Value)
}

// checkRaw decodes payload both ways and compares.
func checkRaw(t *testing.T, d *Decoder, payload []byte, raw *Raw) kvevent.Batch {
	t.Helper()
	var plain, got kvevent.Batch
	plainErr := d.Decode(payload, &plain)
	if err := d.DecodeRaw(payload, &got, raw); err != plainErr { //nolint:errorlint // the very same
		t.Fatalf("got %v with raw hashes, %v without", err, plainErr)
	}
	if diff := cmp.Diff(plain, got, same); diff != "" {
		t.Fatalf("raw hashes change the batch (-without +with):\n%s", diff)
	}
	if len(raw.Events) != len(got.Events) {
		t.Fatalf("raw hashes of %d events, want %d", len(raw.Events), len(got.Events))
	}
	for i, e := range got.Events {
		r := raw.Events[i]
		if len(r.Hashes) != len(e.Hashes) {
			t.Fatalf("event %d: %d raw hashes, want %d", i, len(r.Hashes), len(e.Hashes))
		}
		for j, h := range r.Hashes {
			if h.fold() != e.Hashes[j] {
				t.Fatalf("event %d: raw hash %s is not %d", i, h, e.Hashes[j])
			}
		}
		if want := e.Parent; r.Parent.fold() != want {
			t.Fatalf("event %d: raw parent %s is not %d", i, r.Parent, want)
		}
	}
	return got
}

func TestRawHashesOfGoldenFrames(t *testing.T) {
	// What stands beside the frames: {"$int": "..."}, {"$bytes_hex": "..."} or small numbers in lists of hashes.
	wide := regexp.MustCompile(`\{\s*"\$(int|bytes_hex)": "([^"]*)"\s*\}`)
	d, raw := NewDecoder("VLLM"), Raw{}
	digests, negative := 0, 0
	for _, path := range goldenFrames(t) {
		checkRaw(t, d, readHex(t, path), &raw)
		text, err := os.ReadFile(strings.TrimSuffix(path, ".hex") + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var beside struct{ Decoded json.RawMessage }
		if err := json.Unmarshal(text, &beside); err != nil {
			t.Fatal(err)
		}
		want := map[string]int{}
		for _, m := range wide.FindAllSubmatch(beside.Decoded, -1) {
			s := string(m[2])
			if string(m[1]) == "bytes_hex" {
				s = "0x" + s
				digests++
			}
			if strings.HasPrefix(s, "-") {
				negative++
			}
			want[s]++
		}
		got := map[string]int{}
		for _, e := range raw.Events {
			hashes := e.Hashes
			if e.Parent.fold() != 0 {
				hashes = append(hashes[:len(hashes):len(hashes)], e.Parent)
			}
			for _, h := range hashes {
				if s := h.String(); len(s) > 9 { // small ones stand as plain numbers there
					got[s]++
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	if digests == 0 || negative == 0 {
		t.Errorf("saw %d digests and %d negative hashes", digests, negative)
	}
}

func TestRawHashesBesideEventsThatAreDropped(t *testing.T) {
	good := []any{"BlockRemoved", []any{uint64(1), int64(-2), []byte("0123456789abcdef")}}
	bad := []any{"BlockStored", []any{uint64(7), uint64(8)}, uint64(9), []any{"no id"}, int64(1)}
	cleared := pairs{{"type", "AllBlocksCleared"}, {"block_hashes", []any{uint64(5)}}, {"parent_block_hash", uint64(6)}}
	d, raw := NewDecoder("VLLM"), Raw{}
	for name, tc := range map[string]struct {
		payload []byte
		want    string
	}{
		"a bad event between good ones":   {enc{}.value([]any{1.0, []any{good, bad, good}}), "1,-2,0x30313233343536373839616263646566;1,-2,0x30313233343536373839616263646566;"},
		"a bad event at the end":          {enc{}.value([]any{1.0, []any{good, bad}}), "1,-2,0x30313233343536373839616263646566;"},
		"a list of events given twice":    {enc{}.value(pairs{{"events", []any{good, good}}, {"events", []any{good}}}), "1,-2,0x30313233343536373839616263646566;"},
		"a clear that says too much":      {enc{}.value([]any{1.0, []any{cleared}}), ";"},
		"hashes given twice in one event": {enc{}.value([]any{1.0, []any{pairs{{"type", "BlockRemoved"}, {"block_hashes", []any{uint64(5)}}, {"block_hashes", []any{uint64(6)}}}}}), "6;"},
		"no batch at all":                 {enc{}.str("x"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			checkRaw(t, d, tc.payload, &raw)
			var got strings.Builder
			for _, e := range raw.Events {
				for i, h := range e.Hashes {
					if i > 0 {
						got.WriteByte(',')
					}
					got.WriteString(h.String())
				}
				got.WriteByte(';')
			}
			if got.String() != tc.want {
				t.Errorf("got %s\nwant %s", got.String(), tc.want)
			}
		})
	}
}

func TestRawHashesOfRandomEvents(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	d, raw := NewDecoder("VLLM"), Raw{}
	for range 500 {
		payload := enc{}.value([]any{1.5, []any{randomStored(rng), randomStored(rng)}})
		for rng.IntN(4) == 0 {
			payload[rng.IntN(len(payload))] = byte(rng.Uint32())
		}
		checkRaw(t, d, payload, &raw)
	}
}

func TestDecodeRawDoesNotAllocate(t *testing.T) {
	payload := readHex(t, filepath.Join(frames, "v0.24/removed_bytes_hash.hex"))
	d, raw := NewDecoder("VLLM"), Raw{}
	var b kvevent.Batch
	if n := testing.AllocsPerRun(100, func() {
		if err := d.DecodeRaw(payload, &b, &raw); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
