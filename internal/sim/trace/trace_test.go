package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const small = `{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 512, "output_length": 6, "hash_ids": [0]}
{"timestamp": 3000, "input_length": 1025, "output_length": 7, "hash_ids": [0, 2, 3]}
`

var smallList = []Request{
	{Timestamp: 0, Input: 700, Output: 5, Blocks: []int{0, 1}},
	{Timestamp: 0, Input: 512, Output: 6, Blocks: []int{0}},
	{Timestamp: 3000, Input: 1025, Output: 7, Blocks: []int{0, 2, 3}},
}

func TestReadTakesPlainAndCompressedTraces(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(small)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string][]byte{"plain": []byte(small), "compressed": packed.Bytes()} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadGzip(bytes.NewReader(in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(smallList, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadRefusesWhatIsNoTrace(t *testing.T) {
	for name, in := range map[string]string{
		"a line that is no JSON":          "{\n",
		"an unknown type":                 `{"timestamp": 0, "input_length": "x", "output_length": 1, "hash_ids": [0]}`,
		"too few block ids":               `{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [0]}`,
		"too many block ids":              `{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0, 1]}`,
		"a negative id":                   `{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [-1]}`,
		"an empty prompt":                 `{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}`,
		"less than no output":             `{"timestamp": 0, "input_length": 1, "output_length": -1, "hash_ids": [0]}`,
		"a time before the start":         `{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [0]}`,
		"a prompt longer than any model":  `{"timestamp": 0, "input_length": 99999999, "output_length": 1, "hash_ids": [0]}`,
		"times that go back":              small + `{"timestamp": 2999, "input_length": 1, "output_length": 1, "hash_ids": [0]}`,
		"a block with two parents":        small + `{"timestamp": 3000, "input_length": 1025, "output_length": 1, "hash_ids": [0, 1, 3]}`,
		"a first block that had a parent": small + `{"timestamp": 3000, "input_length": 1, "output_length": 1, "hash_ids": [1]}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(strings.NewReader(in)); !errors.Is(err, ErrFormat) {
				t.Errorf("error is %v, want %v", err, ErrFormat)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte{0x1f, 0x8b})
	f.Add([]byte(`{"hash_ids": null}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		list, err := ReadGzip(bytes.NewReader(in))
		if err != nil {
			return
		}
		// What was read can be replayed, and survives being written.
		at := Arrivals(list)
		for i, q := range list {
			if i > 0 && at[i] < at[i-1] && q.Timestamp-list[i-1].Timestamp >= Tick.Milliseconds() {
				t.Errorf("request %d arrives at %v, before the one above at %v", i, at[i], at[i-1])
			}
			if len(q.Blocks)*BlockTokens < q.Input {
				t.Errorf("request %d has %d blocks for %d tokens", i, len(q.Blocks), q.Input)
			}
		}
		var packed bytes.Buffer
		if err := WriteGzip(&packed, list); err != nil {
			t.Fatal(err)
		}
		again, err := ReadGzip(&packed)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) != len(list) {
			t.Errorf("%d requests came back of %d", len(again), len(list))
		}
	})
}

func TestArrivalsSpreadOverTheirTickInOrder(t *testing.T) {
	list := []Request{{Timestamp: 6000}, {Timestamp: 6000}, {Timestamp: 6000}, {Timestamp: 9000}, {Timestamp: 15000}, {Timestamp: 15000}}
	want := []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 2500 * time.Millisecond, 4500 * time.Millisecond,
		9750 * time.Millisecond, 11250 * time.Millisecond}
	if diff := cmp.Diff(want, Arrivals(list)); diff != "" {
		t.Error(diff)
	}
	if got := Arrivals(nil); len(got) != 0 {
		t.Errorf("no requests arrive at %v", got)
	}
}

func TestCutKeepsTheWindowAndWhatIdsSay(t *testing.T) {
	list, err := Slice()
	if err != nil {
		t.Fatal(err)
	}
	from, length := 5*time.Minute, 3*time.Minute
	cut := Cut(list, from, length)
	inside := list[:0:0]
	for _, q := range list {
		if at := time.Duration(q.Timestamp) * time.Millisecond; at >= from && at < from+length {
			inside = append(inside, q)
		}
	}
	if len(cut) != len(inside) || len(cut) == 0 {
		t.Fatalf("%d requests in the cut, %d in the window", len(cut), len(inside))
	}
	// Ids correspond one to one.
	forth, back := map[int]int{}, map[int]int{}
	for i, q := range cut {
		if q.Input != inside[i].Input || q.Output != inside[i].Output || q.Timestamp != inside[i].Timestamp-from.Milliseconds() {
			t.Fatalf("request %d is %+v, was %+v", i, q, inside[i])
		}
		for j, id := range q.Blocks {
			was := inside[i].Blocks[j]
			if known, ok := forth[was]; ok && known != id {
				t.Fatalf("id %d became %d and %d", was, known, id)
			}
			if known, ok := back[id]; ok && known != was {
				t.Fatalf("ids %d and %d became %d", was, known, id)
			}
			forth[was], back[id] = id, was
		}
	}
}

func TestTheSliceIsWhatItSays(t *testing.T) {
	list, err := Slice()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(list); n < 1500 {
		t.Errorf("%d requests", n)
	}
	if first := list[0].Timestamp; first >= Tick.Milliseconds() {
		t.Errorf("the first request arrives at %d ms", first)
	}
	if last := time.Duration(list[len(list)-1].Timestamp) * time.Millisecond; last >= SliceFor || last < SliceFor-time.Minute {
		t.Errorf("the last request arrives at %v, want the end of %v", last, SliceFor)
	}
	for i, q := range list {
		if q.Blocks[0] != 0 {
			t.Fatalf("request %d does not begin with the system prompt that all share", i)
		}
	}
}
