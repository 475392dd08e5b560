package vllm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

const frames = "testdata/kv-events"

var same = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateNaNs()}

func readHex(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatalf("reading %s: %v", path, err)
	}
	return data
}

func goldenFrames(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(frames, "*", "*.hex"))
	if err != nil || len(paths) < 90 {
		t.Fatalf("found %d golden frames, %v", len(paths), err)
	}
	return paths
}

func TestDecodeGoldenFrames(t *testing.T) {
	releases := map[string]bool{}
	// One decoder and one batch for all: nothing must leak from one frame to the next.
	d, got := NewDecoder("VLLM"), kvevent.Batch{}
	for _, path := range goldenFrames(t) {
		releases[filepath.Base(filepath.Dir(path))] = true
		text, err := os.ReadFile(strings.TrimSuffix(path, ".hex") + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var beside struct{ Decoded json.RawMessage }
		if err := json.Unmarshal(text, &beside); err != nil {
			t.Fatal(err)
		}
		value, err := fromJSON(beside.Decoded)
		if err != nil {
			t.Fatal(err)
		}
		want, err := toBatch(value, "VLLM")
		if err != nil {
			t.Fatalf("%s: the expectation: %v", path, err)
		}
		if err := d.Decode(readHex(t, path), &got); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if diff := cmp.Diff(want, got, same); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
		if got.Skipped != 0 {
			t.Errorf("%s: skipped %d", path, got.Skipped)
		}
	}
	if len(releases) != 7 {
		t.Errorf("saw frames of %v, want seven releases", releases)
	}
}

// What matters of some frames, written out by hand.
func TestDecodeReadsWhatTellsBlocksApart(t *testing.T) {
	root, child := kvevent.Hash(15760529379529121792), kvevent.Hash(81985529216486895)
	digest := kvevent.Hash(0x18191a1b1c1d1e1f)
	tokens := func(n int) []uint32 {
		out := make([]uint32, n)
		for i := range out {
			out[i] = 1000 + uint32(i)
		}
		return out
	}
	stored := func(e kvevent.Event) kvevent.Event {
		e.Kind, e.BlockSize = kvevent.Stored, 16
		return e
	}
	cases := map[string]struct {
		frame string
		want  kvevent.Event
	}{
		"an adapter known only by number has no key": {"v0.10.2/stored_lora",
			stored(kvevent.Event{Hashes: []kvevent.Hash{child}, Tokens: tokens(16), Medium: "GPU", Unkeyed: true})},
		"an adapter's name is kept and is no salt": {"v0.20.0/stored_lora",
			stored(kvevent.Event{Hashes: []kvevent.Hash{child}, Tokens: tokens(16), Medium: "GPU", Adapter: "sql-lora"})},
		"a salt is the bare string of the first block": {"v0.24/stored_salt",
			stored(kvevent.Event{Hashes: []kvevent.Hash{root, child}, Tokens: tokens(32), Medium: "GPU", Salt: "tenant-a"})},
		"an image is an item with its offset": {"v0.21-v0.23/stored_mm",
			stored(kvevent.Event{Hashes: []kvevent.Hash{root}, Tokens: tokens(16), Medium: "GPU",
				Items: []kvevent.Item{{Key: "mmhash00ff", Offset: 4}}})},
		"a sliding window needs the tokens before the next one": {"v0.24/stored_swa_gap",
			stored(kvevent.Event{Hashes: []kvevent.Hash{child}, Parent: root, HasParent: true, Tokens: tokens(32),
				Medium: "GPU", Group: 1, Tail: 1023})},
		"a digest counts by its last eight bytes": {"v0.14.0/removed_bytes_hash",
			kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.Hash{digest}, Medium: "GPU"}},
		"an announcement of hashes alone keeps its tier": {"v0.24/stored_cpu_placeholder",
			kvevent.Event{Kind: kvevent.Stored, Hashes: []kvevent.Hash{root}, Medium: "CPU"}},
		"a child names its parent": {"v0.9.0/stored_child_2blk",
			stored(kvevent.Event{Hashes: []kvevent.Hash{child, 7}, Parent: root, HasParent: true, Tokens: tokens(32)})},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got kvevent.Batch
			if err := NewDecoder("VLLM").Decode(readHex(t, filepath.Join(frames, tc.frame+".hex")), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]kvevent.Event{tc.want}, got.Events, same); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Payloads of replay exchanges are event batches too; the last two frames count, an empty payload ends.
func TestDecodeReplayReplies(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(frames, "*", "_replay.json"))
	if err != nil || len(paths) != 7 {
		t.Fatalf("found %d replay exchanges, %v", len(paths), err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var exchange struct {
			Replies [][]string `json:"replies_seen_by_DEALER"`
		}
		if err := json.Unmarshal(text, &exchange); err != nil {
			t.Fatal(err)
		}
		batches, ended := 0, false
		for _, reply := range exchange.Replies {
			payload, err := hex.DecodeString(reply[len(reply)-1])
			if err != nil {
				t.Fatal(err)
			}
			if len(payload) == 0 {
				ended = true
				continue
			}
			var b kvevent.Batch
			if err := NewDecoder("VLLM").Decode(payload, &b); err != nil || b.Skipped != 0 {
				t.Errorf("%s: %v, skipped %d", path, err, b.Skipped)
			}
			batches++
		}
		if batches == 0 || !ended {
			t.Errorf("%s: %d batches, ended %v", path, batches, ended)
		}
	}
}

func TestFormOfEventsDoesNotMatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	d := NewDecoder("VLLM")
	var fromArrays, fromMaps kvevent.Batch
	for round := range 2000 {
		var arrays, maps []any
		for range 1 + rng.IntN(4) {
			list, names := randomStored(rng), storedNames
			switch rng.IntN(4) {
			case 0:
				list, names = []any{"BlockRemoved", list[1], list[6], list[9]}, removedNames
			case 1:
				list, names = []any{"AllBlocksCleared"}, clearedNames
			case 2:
				// Releases end their arrays at different places.
				list = list[:[]int{6, 7, 8, 9, 10, 12}[rng.IntN(6)]]
			}
			named := pairs{}
			for i, v := range list {
				if v != nil || rng.IntN(2) == 0 {
					named = append(named, pair{names[i], v})
				}
			}
			rng.Shuffle(len(named), func(i, j int) { named[i], named[j] = named[j], named[i] })
			arrays, maps = append(arrays, list), append(maps, named)
		}
		array := enc{}.value([]any{1.5, arrays, int64(2)})
		object := enc{}.value(pairs{{"events", maps}, {"data_parallel_rank", int64(2)}, {"ts", 1.5}})
		if err := d.Decode(array, &fromArrays); err != nil {
			t.Fatalf("round %d, arrays: %v", round, err)
		}
		if err := d.Decode(object, &fromMaps); err != nil {
			t.Fatalf("round %d, maps: %v", round, err)
		}
		if len(fromArrays.Events) != len(arrays) {
			t.Fatalf("round %d: %d of %d events", round, len(fromArrays.Events), len(arrays))
		}
		if diff := cmp.Diff(fromArrays, fromMaps, same); diff != "" {
			t.Fatalf("round %d (-arrays +maps):\n%s", round, diff)
		}
	}
}

func TestDecodePassesOverWhatItDoesNotUnderstand(t *testing.T) {
	cleared := []any{"AllBlocksCleared"}
	stored := func(change func([]any) []any) []any {
		return change([]any{"BlockStored", []any{uint64(1)}, nil, []any{uint32(5)}, int64(1), nil, "GPU", nil})
	}
	set := func(i int, v any) []any {
		return stored(func(e []any) []any { e[i] = v; return e })
	}
	cases := map[string]struct {
		payload               []byte
		events, count, unread int
	}{
		"an event with an unknown tag":           {enc{}.value([]any{1.0, []any{[]any{"BlockMoved", "x"}, cleared}, nil}), 1, 1, 0},
		"a map with an unknown tag":              {enc{}.value([]any{1.0, []any{pairs{{"type", "BlockMoved"}}, cleared}}), 1, 1, 0},
		"a map without a tag":                    {enc{}.value([]any{1.0, []any{pairs{{"medium", "GPU"}}, cleared}}), 1, 1, 0},
		"an unknown key of an event":             {enc{}.value([]any{1.0, []any{pairs{{"type", "AllBlocksCleared"}, {"why", pairs{{"a", nil}}}}}}), 1, 1, 0},
		"an unknown position of an event":        {enc{}.value([]any{1.0, []any{[]any{"BlockRemoved", []any{}, nil, nil, 7, 8}}}), 1, 2, 0},
		"an unknown element of the batch":        {enc{}.value([]any{1.0, []any{cleared}, 0, "more"}), 1, 1, 0},
		"an unknown key of the batch":            {enc{}.value(pairs{{"events", []any{cleared}}, {"epoch", "x"}}), 1, 1, 0},
		"a key of an event that is a number":     {enc{}.value([]any{1.0, []any{pairs{{"type", "AllBlocksCleared"}, {7, pairs{{"a", nil}}}}}}), 1, 1, 0},
		"a removal of what is text":              {enc{}.value([]any{1.0, []any{[]any{"BlockRemoved", []any{"ab"}}, cleared}}), 1, 1, 1},
		"the same as a map, its tag last":        {enc{}.value([]any{1.0, []any{pairs{{"block_hashes", []any{"ab"}}, {7, 7}, {"type", "BlockRemoved"}}, cleared}}), 1, 1, 1},
		"a medium that is a number":              {enc{}.value([]any{1.0, []any{[]any{"AllBlocksCleared", 7}, cleared}}), 1, 1, 1},
		"a rank that is no number":               {enc{}.value([]any{1.0, []any{cleared}, "zero"}), 1, 1, 0},
		"bytes behind the batch":                 {append(enc{}.value([]any{1.0, []any{cleared}}), 0, 0), 1, 1, 0},
		"an event that is a number":              {enc{}.value([]any{1.0, []any{int64(3), cleared}}), 1, 1, 0},
		"an event that is an empty array":        {enc{}.value([]any{1.0, []any{[]any{}, cleared}}), 1, 1, 0},
		"a token beyond 32 bits":                 {enc{}.value([]any{1.0, []any{set(3, []any{int64(1 << 32)}), cleared}}), 1, 1, 1},
		"a negative token":                       {enc{}.value([]any{1.0, []any{set(3, []any{int64(-1)}), cleared}}), 1, 1, 1},
		"tokens in pairs":                        {enc{}.value([]any{1.0, []any{set(3, []any{[]any{1, 2}}), cleared}}), 1, 1, 1},
		"a hash that is text":                    {enc{}.value([]any{1.0, []any{set(1, []any{"ab"}), cleared}}), 1, 1, 1},
		"a digest of seven bytes":                {enc{}.value([]any{1.0, []any{set(1, []any{make([]byte, 7)}), cleared}}), 1, 1, 1},
		"a negative block size":                  {enc{}.value([]any{1.0, []any{set(4, int64(-16)), cleared}}), 1, 1, 1},
		"a stored event without its block size":  {enc{}.value([]any{1.0, []any{[]any{"BlockStored", []any{}, nil, []any{}}, cleared}}), 1, 1, 1},
		"a stored map without hashes":            {enc{}.value([]any{1.0, []any{pairs{{"type", "BlockStored"}}, cleared}}), 1, 1, 1},
		"a map where vLLM has the adapter":       {enc{}.value([]any{1.0, []any{set(7, pairs{{"cache_salt", "s"}})}}), 1, 1, 0},
		"a kind of attention that is no text":    {enc{}.value([]any{1.0, []any{pairs{{"type", "BlockStored"}, {"block_hashes", []any{}}, {"kv_cache_spec_kind", 4}}}}), 1, 1, 0},
		"extra keys of an unknown type":          {enc{}.value([]any{1.0, []any{stored(func(e []any) []any { return append(e, []any{[]any{true}}) })}}), 1, 1, 0},
		"extra keys for more blocks than stored": {enc{}.value([]any{1.0, []any{stored(func(e []any) []any { return append(e, []any{nil, []any{"s"}}) })}}), 1, 1, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var b kvevent.Batch
			if err := NewDecoder("VLLM").Decode(tc.payload, &b); err != nil {
				t.Fatal(err)
			}
			if len(b.Events) != tc.events || b.Skipped != tc.count || b.Unread != tc.unread {
				t.Errorf("got %d events, %d skipped, %d unread, want %d, %d and %d", len(b.Events), b.Skipped, b.Unread, tc.events, tc.count, tc.unread)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	cases := map[string]struct {
		payload []byte
		want    error
	}{
		"nothing":                               {nil, ErrMalformed},
		"the byte that the format never uses":   {[]byte{0xc1}, ErrMalformed},
		"a batch cut short":                     {readHex(t, frames+"/bench_array.hex")[:1000], ErrMalformed},
		"an array that claims 4 GiB":            {[]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, ErrMalformed},
		"a string that claims 4 GiB":            {[]byte{0x92, 0x00, 0x91, 0x91, 0xdb, 0xff, 0xff, 0xff, 0xff}, ErrMalformed},
		"a hundred thousand open arrays":        {bytes.Repeat([]byte{0x91}, 100000), ErrMalformed},
		"a digest longer than what is left":     {[]byte("\x93\x00\x91\x94\xacBlockRemoved\x91\xc4\x30\x00\xa0\x00\x00\x00"), ErrMalformed},
		"text":                                  {enc{}.str("hello"), ErrLayout},
		"an array of one":                       {enc{}.value([]any{1.0}), ErrLayout},
		"a time that is text":                   {enc{}.value([]any{"now", []any{}}), ErrLayout},
		"events that are no list":               {enc{}.value([]any{1.0, 5}), ErrLayout},
		"a map without events":                  {enc{}.value(pairs{{"ts", 1.0}}), ErrLayout},
		"a map with numbers for keys":           {enc{}.value(pairs{{1, 1.0}, {"events", []any{}}}), ErrLayout},
		"deep nesting that does end":            {append(bytes.Repeat([]byte{0x91}, 100000), 0xc0), ErrLayout},
		"bare events, without a batch's array":  {enc{}.value([]any{"AllBlocksCleared", []any{}}), ErrLayout},
		"a number of 128 bits, as an extension": {append([]byte{0xd8, 1}, make([]byte, 16)...), ErrLayout},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := kvevent.Batch{Events: make([]kvevent.Event, 3)}
			if err := NewDecoder("VLLM").Decode(tc.payload, &b); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if len(b.Events) != 0 {
				t.Errorf("left %d events", len(b.Events))
			}
		})
	}
}

func TestDecodeIdentity(t *testing.T) {
	type event = kvevent.Event
	base := func(medium, adapter, extra any) []any {
		return []any{"BlockStored", []any{uint64(1), uint64(2)}, nil, []any{uint32(5), uint32(6)}, int64(1), nil, medium, adapter, extra}
	}
	child := func(e []any) []any { e[2] = uint64(9); return e }
	cases := map[string]struct {
		engine string
		event  []any
		want   event
	}{
		"a salt equal to the adapter's name is still a salt": {"VLLM",
			base("GPU", "a", []any{[]any{"a", "a"}, []any{"a"}}), event{Medium: "GPU", Adapter: "a", Salt: "a"}},
		"the last bare string of the first block is the salt": {"VLLM",
			base("GPU", nil, []any{[]any{"img", "s", []byte{0xab}}, nil}),
			event{Medium: "GPU", Salt: "s", Items: []kvevent.Item{{Key: "img"}, {Key: "ab"}}}},
		"a bare string after the first block is an item": {"VLLM",
			base("GPU", nil, []any{nil, []any{"img"}}), event{Medium: "GPU", Items: []kvevent.Item{{Block: 1, Key: "img"}}}},
		"blocks with a parent carry no salt": {"VLLM", child(base("GPU", nil, []any{[]any{"img"}, nil})),
			event{Medium: "GPU", Parent: 9, HasParent: true, Items: []kvevent.Item{{Key: "img"}}}},
		"no extra keys on the GPU mean none":               {"VLLM", base(nil, nil, nil), event{}},
		"no extra keys on an offload tier mean not known":  {"VLLM", base("CPU", nil, nil), event{Medium: "CPU", Unkeyed: true}},
		"an offload tier that lists its keys is keyed":     {"VLLM", base("CPU", nil, []any{nil, nil}), event{Medium: "CPU"}},
		"SGLang's tiers need no extra keys":                {"SGLang", base("CPU_PINNED", nil, nil), event{Medium: "CPU_PINNED"}},
		"SGLang's salt is in the metadata":                 {"SGLang", base("GPU", pairs{{"session_id", "x"}, {"cache_salt", "s"}}, nil), event{Medium: "GPU", Salt: "s"}},
		"SGLang's salt counts for blocks without a parent": {"SGLang", child(base("GPU", pairs{{"cache_salt", "s"}}, nil)), event{Medium: "GPU", Parent: 9, HasParent: true}},
		"parent 0 is no parent":                            {"VLLM", func() []any { e := base(nil, nil, nil); e[2] = int64(0); return e }(), event{}},
		"an adapter's number with its name is keyed": {"VLLM",
			func() []any { e := base(nil, "a", nil); e[5] = int64(0); return e }(), event{Adapter: "a"}},
		"an adapter's number alone is not": {"VLLM",
			func() []any { e := base(nil, nil, nil); e[5] = int64(0); return e }(), event{Unkeyed: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var b kvevent.Batch
			if err := NewDecoder(tc.engine).Decode(enc{}.value([]any{1.0, []any{tc.event}}), &b); err != nil {
				t.Fatal(err)
			}
			tc.want.Kind, tc.want.BlockSize = kvevent.Stored, 1
			tc.want.Hashes, tc.want.Tokens = []kvevent.Hash{1, 2}, []uint32{5, 6}
			if diff := cmp.Diff([]event{tc.want}, b.Events, same); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if b.Skipped != 0 {
				t.Errorf("skipped %d", b.Skipped)
			}
		})
	}
}

func TestDecodeKeepsNothingOfThePayload(t *testing.T) {
	payload := readHex(t, frames+"/v0.24/stored_lora.hex")
	d := NewDecoder("VLLM")
	var got, want kvevent.Batch
	for _, b := range []*kvevent.Batch{&got, &want} {
		if err := d.Decode(payload, b); err != nil {
			t.Fatal(err)
		}
		clear(payload)
		payload = readHex(t, frames+"/v0.24/stored_lora.hex")
	}
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestInternedStringsAreBounded(t *testing.T) {
	d := NewDecoder("VLLM")
	var b kvevent.Batch
	for i := range 5 * maxInterned {
		salt := string(binary.BigEndian.AppendUint32(nil, uint32(i)))
		payload := enc{}.value([]any{1.0, []any{
			pairs{{"type", "BlockStored"}, {"block_hashes", []any{uint64(1)}}, {"extra_keys", []any{[]any{salt}}}},
			pairs{{"type", "AllBlocksCleared"}, {"medium", strings.Repeat(salt, maxInternedBytes)}},
		}})
		if err := d.Decode(payload, &b); err != nil || b.Events[0].Salt != salt {
			t.Fatalf("salt %d: %v", i, err)
		}
		if len(d.names) > maxInterned {
			t.Fatalf("%d strings kept", len(d.names))
		}
	}
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	for _, file := range []string{"bench_array.hex", "bench_map.hex", "v0.24/stored_salt.hex", "v0.24/stored_mm.hex", "v0.24/mixed.hex"} {
		payload := readHex(t, filepath.Join(frames, file))
		d := NewDecoder("VLLM")
		var b kvevent.Batch
		if n := testing.AllocsPerRun(100, func() {
			if err := d.Decode(payload, &b); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", file, n)
		}
	}
}
