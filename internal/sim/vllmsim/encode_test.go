package vllmsim

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

// goldenLayouts are the folders of frames that real publishers sent.
var goldenLayouts = map[string]Layout{
	"v0.9.0": Layout090, "v0.9.1": Layout091, "v0.10.2": Layout0102, "v0.14.0": Layout014, "v0.20.0": Layout020,
	"v0.21-v0.23": Layout022, "v0.24": Layout024,
}

// fieldNames are the positions of an array event's fields.
var fieldNames = map[string][]string{
	"BlockStored": {
		"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
		"group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
	},
	"BlockRemoved":     {"type", "block_hashes", "medium", "group_idx"},
	"AllBlocksCleared": {"type"},
}

// digests stands in for hashes that are bytes in a golden frame.
type digests struct {
	of     map[enginemodel.Hash][]byte
	signed bool
}

func (d *digests) hash(t *testing.T, v any) enginemodel.Hash {
	t.Helper()
	switch v := v.(type) {
	case nil:
		return 0
	case float64:
		return enginemodel.Hash(v)
	case map[string]any:
		if s, ok := v["$bytes_hex"].(string); ok {
			b, err := hex.DecodeString(s)
			if err != nil {
				t.Fatal(err)
			}
			h := enginemodel.Hash(len(d.of) + 1)
			d.of[h] = b
			return h
		}
		s := v["$int"].(string)
		if strings.HasPrefix(s, "-") {
			d.signed = true
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return enginemodel.Hash(n)
		}
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return enginemodel.Hash(n)
	}
	t.Fatalf("hash %v", v)
	return 0
}

// event reads a decoded golden event.
func (d *digests) event(t *testing.T, v any) WireEvent {
	t.Helper()
	fields, ok := v.(map[string]any)
	if !ok {
		list := v.([]any)
		fields = map[string]any{}
		for i, f := range list {
			fields[fieldNames[list[0].(string)][i]] = f
		}
	}
	ev := WireEvent{Group: -1}
	for kind, tag := range tags {
		if tag == fields["type"] {
			ev.Kind = kind
		}
	}
	text := func(name string) string { s, _ := fields[name].(string); return s }
	num := func(name string) int { n, _ := fields[name].(float64); return int(n) }
	list := func(name string) []any { l, _ := fields[name].([]any); return l }
	for _, h := range list("block_hashes") {
		ev.Hashes = append(ev.Hashes, d.hash(t, h))
	}
	ev.Parent = d.hash(t, fields["parent_block_hash"])
	for _, id := range list("token_ids") {
		ev.Tokens = append(ev.Tokens, uint32(id.(float64)))
	}
	ev.BlockSize, ev.LoRAID, ev.Window = num("block_size"), num("lora_id"), num("kv_cache_spec_sliding_window")
	ev.Medium, ev.LoRAName, ev.Spec = text("medium"), text("lora_name"), text("kv_cache_spec_kind")
	if fields["group_idx"] != nil {
		ev.Group = num("group_idx")
	}
	for _, keys := range list("extra_keys") {
		var out []ExtraKey
		if keys, ok := keys.([]any); ok {
			for _, k := range keys {
				if pair, ok := k.([]any); ok {
					out = append(out, ExtraKey{Name: pair[0].(string), Offset: int(pair[1].(float64)), HasOffset: true})
				} else {
					out = append(out, ExtraKey{Name: k.(string)})
				}
			}
		}
		ev.Extra = append(ev.Extra, out)
	}
	return ev
}

func TestEncodesWhatEveryReleaseSends(t *testing.T) {
	seen := 0
	for folder, layout := range goldenLayouts {
		files, err := filepath.Glob(filepath.Join("../../vllm/testdata/kv-events", folder, "*.hex"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no frames of %s: %v", folder, err)
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".hex")
			t.Run(folder+"/"+name, func(t *testing.T) {
				seen++
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				text, err := os.ReadFile(strings.TrimSuffix(file, ".hex") + ".json")
				if err != nil {
					t.Fatal(err)
				}
				var golden struct{ Decoded []any }
				if err := json.Unmarshal(text, &golden); err != nil {
					t.Fatal(err)
				}
				d := &digests{of: map[enginemodel.Hash][]byte{}}
				var events []WireEvent
				for _, v := range golden.Decoded[1].([]any) {
					events = append(events, d.event(t, v))
				}
				enc := Encoder{Layout: layout, Signed: d.signed}
				if len(d.of) > 0 {
					enc.Digest = func(dst []byte, h enginemodel.Hash) []byte { return append(dst, d.of[h]...) }
				}
				got := hex.EncodeToString(enc.AppendBatch(nil, golden.Decoded[0].(float64), events))
				if diff := cmp.Diff(strings.TrimSpace(string(want)), got); diff != "" {
					t.Errorf("frame (-want +got):\n%s", diff)
				}
			})
		}
	}
	if seen < 80 {
		t.Errorf("only %d golden frames", seen)
	}
}

// v0.17 to v0.19 have no golden frame: extra_keys is the ninth and last field.
func TestLayout017EndsWithExtraKeys(t *testing.T) {
	enc := Encoder{Layout: Layout017, Rank: 2}
	ev := WireEvent{
		Kind: enginemodel.Stored, Hashes: []enginemodel.Hash{7}, Tokens: []uint32{1, 2}, BlockSize: 2, Medium: mediumGPU, Group: 0,
		Spec: specFullAttention, Extra: [][]ExtraKey{{{Name: "salt"}}},
	}
	got, _ := unpack(enc.AppendBatch(nil, 1, []WireEvent{ev}))
	want := []any{1.0, []any{[]any{
		"BlockStored", []any{uint64(7)}, nil, []any{uint64(1), uint64(2)}, uint64(2), nil, "GPU", nil, []any{[]any{"salt"}},
	}}, uint64(2)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("batch (-want +got):\n%s", diff)
	}
}

func TestExtraKeysOfAdapterAndSalt(t *testing.T) {
	cases := map[string]struct {
		event enginemodel.Event
		want  [][]ExtraKey
	}{
		"neither":                     {enginemodel.Event{Hashes: []enginemodel.Hash{1, 2}}, [][]ExtraKey{nil, nil}},
		"an adapter is in each block": {enginemodel.Event{Hashes: []enginemodel.Hash{1, 2}, Adapter: "a"}, [][]ExtraKey{{{Name: "a"}}, {{Name: "a"}}}},
		"a salt is in the first":      {enginemodel.Event{Hashes: []enginemodel.Hash{1, 2}, Salt: "s"}, [][]ExtraKey{{{Name: "s"}}, nil}},
		"the adapter comes first":     {enginemodel.Event{Hashes: []enginemodel.Hash{1}, Adapter: "a", Salt: "s"}, [][]ExtraKey{{{Name: "a"}, {Name: "s"}}}},
		"no salt in later blocks":     {enginemodel.Event{Hashes: []enginemodel.Hash{2}, Parent: 1, Salt: "s"}, [][]ExtraKey{nil}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, extraKeys(&tc.event), cmp.AllowUnexported(ExtraKey{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDigestEndsWithTheInteger(t *testing.T) {
	d := LongDigest(nil, 0x0102030405060708)
	if len(d) != 32 || hex.EncodeToString(d[24:]) != "0102030405060708" {
		t.Errorf("digest %x", d)
	}
}
