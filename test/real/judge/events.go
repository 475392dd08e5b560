package judge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// pair is an entry of a MessagePack map, in the order of the wire.
type pair struct {
	key, value any
}

var errMessagePack = errors.New("not MessagePack as engines send it")

// unpack reads one MessagePack value: nil, bool, int64, uint64, float64, string, []byte, []any or []pair. It is as plain
// as can be, so that it can judge the decoder of package vllm.
func unpack(b []byte) (any, []byte, error) {
	if len(b) == 0 {
		return nil, nil, errMessagePack
	}
	c, rest := b[0], b[1:]
	switch {
	case c < 0x80:
		return int64(c), rest, nil
	case c < 0x90:
		return unpackMap(int(c&15), rest)
	case c < 0xa0:
		return unpackArray(int(c&15), rest)
	case c < 0xc0:
		return unpackBytes(int(c&31), rest, true)
	case c >= 0xe0:
		return int64(int8(c)), rest, nil
	case c == 0xc0:
		return nil, rest, nil
	case c == 0xc2 || c == 0xc3:
		return c == 0xc3, rest, nil
	}
	width := map[byte]int{
		0xc4: 1, 0xc5: 2, 0xc6: 4, 0xcb: 8, 0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8, 0xd0: 1, 0xd1: 2, 0xd2: 4, 0xd3: 8,
		0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2, 0xdf: 4,
	}[c]
	if width == 0 || len(rest) < width {
		return nil, nil, errMessagePack
	}
	var wide [8]byte
	copy(wide[8-width:], rest)
	n, rest := binary.BigEndian.Uint64(wide[:]), rest[width:]
	switch {
	case c == 0xcb:
		return math.Float64frombits(n), rest, nil
	case c <= 0xc6:
		return unpackBytes(int(n), rest, false)
	case c <= 0xcf:
		return n, rest, nil
	case c <= 0xd3:
		shift := 64 - 8*width
		return int64(n<<shift) >> shift, rest, nil
	case c <= 0xdb:
		return unpackBytes(int(n), rest, true)
	case c <= 0xdd:
		return unpackArray(int(n), rest)
	}
	return unpackMap(int(n), rest)
}

func unpackBytes(n int, b []byte, text bool) (any, []byte, error) {
	if n > len(b) {
		return nil, nil, errMessagePack
	}
	if text {
		return string(b[:n]), b[n:], nil
	}
	return slices.Clone(b[:n]), b[n:], nil
}

func unpackArray(n int, b []byte) (any, []byte, error) {
	list := []any{}
	for range n {
		v, rest, err := unpack(b)
		if err != nil {
			return nil, nil, err
		}
		list, b = append(list, v), rest
	}
	return list, b, nil
}

func unpackMap(n int, b []byte) (any, []byte, error) {
	entries := []pair{}
	for range n {
		k, rest, err := unpack(b)
		if err != nil {
			return nil, nil, err
		}
		v, rest, err := unpack(rest)
		if err != nil {
			return nil, nil, err
		}
		entries, b = append(entries, pair{k, v}), rest
	}
	return entries, b, nil
}

// renamer replaces block hashes by their order of appearance.
type renamer map[string]int

func (r renamer) name(hash any) string {
	if hash == nil {
		return "nil"
	}
	key, kind := fmt.Sprint(hash), "h"
	if _, ok := hash.([]byte); ok {
		kind = fmt.Sprintf("digest of %d bytes ", len(hash.([]byte)))
	}
	if _, ok := r[key]; !ok {
		r[key] = len(r) + 1
	}
	return fmt.Sprint(kind, r[key])
}

// position are the names of the fields of events that are arrays.
var position = map[string][]string{
	"BlockStored": {
		"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
		"group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
	},
	"BlockRemoved": {"type", "block_hashes", "medium", "group_idx"},
}

// noteBatch notes the events of a payload, numbered from i on, and returns the next number. prompt is what was asked.
func (o Observation) noteBatch(i int, payload []byte, hashes renamer, prompt []int) int {
	v, rest, err := unpack(payload)
	batch, ok := v.([]any)
	if err != nil || len(rest) > 0 || !ok || len(batch) < 2 {
		o.set("batch", "not a list of at least two")
		return i
	}
	o.set("batch", fmt.Sprintf("%d elements, rank %v", len(batch), batch[2:]))
	events, _ := batch[1].([]any)
	for _, event := range events {
		o.set(fmt.Sprintf("event %02d", i), describeEvent(event, hashes, prompt))
		i++
	}
	return i
}

func describeEvent(event any, hashes renamer, prompt []int) string {
	fields, form := []pair{}, "map"
	switch event := event.(type) {
	case []pair:
		fields = event
	case []any:
		form = "list"
		var names []string
		if len(event) > 0 {
			tag, _ := event[0].(string)
			names = position[tag]
		}
		for i, v := range event {
			name := fmt.Sprint(i)
			if i < len(names) {
				name = names[i]
			}
			fields = append(fields, pair{name, v})
		}
	}
	var b strings.Builder
	b.WriteString(form)
	for _, f := range fields {
		fmt.Fprintf(&b, " %v:%s", f.key, describeField(fmt.Sprint(f.key), f.value, hashes, prompt))
	}
	return b.String()
}

func describeField(name string, v any, hashes renamer, prompt []int) string {
	list, _ := v.([]any)
	switch name {
	case "block_hashes":
		var names []string
		for _, h := range list {
			names = append(names, hashes.name(h))
		}
		return "[" + strings.Join(names, " ") + "]"
	case "parent_block_hash":
		return hashes.name(v)
	case "token_ids":
		return describeTokens(list, prompt)
	}
	switch v := v.(type) {
	case nil:
		return "nil"
	case []any:
		var items []string
		for _, item := range v {
			items = append(items, describeField("", item, hashes, prompt))
		}
		return "[" + strings.Join(items, " ") + "]"
	}
	return fmt.Sprintf("%v", v)
}

// describeTokens names tokens by where they are in the prompt, or counts them.
func describeTokens(list []any, prompt []int) string {
	for at := 0; len(list) > 0 && at+len(list) <= len(prompt); at += BlockSize {
		same := true
		for i, v := range list {
			same = same && fmt.Sprint(v) == fmt.Sprint(prompt[at+i])
		}
		if same {
			return fmt.Sprintf("prompt[%d:%d]", at, at+len(list))
		}
	}
	return fmt.Sprintf("%d tokens", len(list))
}
