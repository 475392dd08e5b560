package vllm

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// toBatch is what the events of a generic value should be.
func toBatch(v any, engine string) (kvevent.Batch, error) {
	batch := kvevent.Batch{Rank: -1}
	set := func(name string, v any) error {
		switch name {
		case "ts":
			ts, ok := toFloat(v)
			if !ok {
				return ErrLayout
			}
			batch.Time = ts
		case "events":
			list, ok := v.([]any)
			if !ok {
				return ErrLayout
			}
			batch.Events, batch.Unread = nil, 0
			for _, item := range list {
				event, skipped, err := toEvent(item, engine)
				if err != nil {
					batch.Skipped++
					if tagOf(item) {
						batch.Unread++
					}
					continue
				}
				batch.Skipped += skipped
				batch.Events = append(batch.Events, event)
			}
		case "rank":
			batch.Rank = -1
			if n, ok := v.(int64); ok && n >= 0 && n <= math.MaxInt32 {
				batch.Rank = int(n)
			} else if v != nil {
				batch.Skipped++
			}
		default:
			batch.Skipped++
		}
		return nil
	}
	switch v := v.(type) {
	case []any:
		if len(v) < 2 {
			return batch, ErrLayout
		}
		for i, item := range v {
			if err := set([]string{"ts", "events", "rank", ""}[min(i, 3)], item); err != nil {
				return batch, err
			}
		}
		return batch, nil
	case pairs:
		seen := false
		for _, p := range v {
			key, ok := p.key.(string)
			if !ok || key == "rank" {
				if !ok {
					return batch, ErrLayout
				}
				key = ""
			}
			if key == "data_parallel_rank" || key == "attn_dp_rank" {
				key = "rank"
			}
			seen = seen || key == "events"
			if err := set(key, p.value); err != nil {
				return batch, err
			}
		}
		if seen {
			return batch, nil
		}
	}
	return batch, ErrLayout
}

var (
	storedNames = []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
		"lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"}
	removedNames = []string{"type", "block_hashes", "medium", "group_idx"}
	clearedNames = []string{"type", "medium"}
	errEvent     = errors.New("event not understood")
)

// tagOf reports whether an event has a known tag.
func tagOf(v any) bool {
	known := func(v any) bool { return v == "BlockStored" || v == "BlockRemoved" || v == "AllBlocksCleared" }
	switch v := v.(type) {
	case pairs:
		for _, p := range v {
			if p.key == "type" && known(p.value) {
				return true
			}
		}
	case []any:
		return len(v) > 0 && known(v[0])
	}
	return false
}

// toEvent normalises both forms to names, then builds the event.
func toEvent(v any, engine string) (kvevent.Event, int, error) {
	skipped := 0
	named := pairs{}
	switch v := v.(type) {
	case pairs:
		for _, p := range v {
			if _, ok := p.key.(string); !ok {
				skipped++
				continue
			}
			if p.key == "metadata" && engine != "SGLang" {
				skipped++
				continue
			}
			named = append(named, p)
		}
	case []any:
		if len(v) == 0 {
			return kvevent.Event{}, 0, errEvent
		}
		names, least := clearedNames, 1
		switch v[0] {
		case "BlockStored":
			names, least = storedNames, 5
		case "BlockRemoved":
			names, least = removedNames, 2
		}
		if len(v) < least {
			return kvevent.Event{}, 0, errEvent
		}
		for i, item := range v {
			if i >= len(names) {
				skipped++
				continue
			}
			name := names[i]
			if _, ok := item.(pairs); ok && name == "lora_name" {
				if name = "metadata"; engine != "SGLang" {
					skipped++
					continue
				}
			}
			named = append(named, pair{name, item})
		}
	default:
		return kvevent.Event{}, 0, errEvent
	}
	e, more, err := fromNamed(named, engine)
	return e, skipped + more, err
}

type named struct {
	e                   kvevent.Event
	skipped             int
	hasHashes, hasLora  bool
	extra               any
	metadataSalt, kind_ string
	spec                any // kv_cache_spec_kind
	window              int
}

func fromNamed(list pairs, engine string) (kvevent.Event, int, error) {
	var n named
	for _, p := range list {
		if err := n.set(p.key.(string), p.value); err != nil {
			return kvevent.Event{}, 0, err
		}
	}
	e := n.e
	switch n.kind_ {
	case "BlockStored":
		if !n.hasHashes {
			return e, 0, errEvent
		}
		n.identity(engine)
		n.e.Kind = kvevent.Stored
		return n.e, n.skipped, nil
	case "BlockRemoved":
		if !n.hasHashes {
			return e, 0, errEvent
		}
		return kvevent.Event{Kind: kvevent.Removed, Hashes: e.Hashes, Medium: e.Medium, Group: e.Group}, n.skipped, nil
	case "AllBlocksCleared":
		return kvevent.Event{Kind: kvevent.Cleared, Medium: e.Medium}, n.skipped, nil
	}
	return e, 0, errEvent
}

func (n *named) set(name string, v any) (err error) {
	switch name {
	case "type":
		switch v {
		case "BlockStored", "BlockRemoved", "AllBlocksCleared":
			n.kind_, _ = v.(string)
		default:
			return errEvent
		}
	case "block_hashes":
		n.hasHashes = true
		n.e.Hashes = nil
		list, ok := v.([]any)
		if !ok {
			return errEvent
		}
		for _, item := range list {
			h, err := toHash(item)
			if err != nil {
				return err
			}
			n.e.Hashes = append(n.e.Hashes, h)
		}
	case "parent_block_hash":
		n.e.Parent, n.e.HasParent = 0, false
		if v != nil {
			n.e.Parent, err = toHash(v)
			n.e.HasParent = n.e.Parent != 0
		}
	case "token_ids":
		n.e.Tokens = nil
		if v == nil {
			return nil
		}
		list, ok := v.([]any)
		if !ok {
			return errEvent
		}
		for _, item := range list {
			id, ok := item.(int64)
			if !ok || id < 0 || id > math.MaxUint32 {
				return errEvent
			}
			n.e.Tokens = append(n.e.Tokens, uint32(id))
		}
	case "block_size":
		n.e.BlockSize, err = toCount(v)
	case "group_idx":
		n.e.Group, err = toCount(v)
	case "lora_id":
		n.hasLora = v != nil
	case "lora_name":
		n.e.Adapter, err = toText(v)
	case "medium":
		n.e.Medium, err = toText(v)
	case "extra_keys":
		n.extra = v
	case "kv_cache_spec_kind":
		n.spec = v
		if _, ok := v.(string); !ok && v != nil {
			n.skipped++
		}
	case "kv_cache_spec_sliding_window":
		n.window = 0
		if v != nil {
			var bad error
			if n.window, bad = toCount(v); bad != nil {
				n.window = 0
				n.skipped++
			}
		}
	case "lookahead_token_ids":
		list, ok := v.([]any)
		n.e.Lookahead = ok && len(list) > 0
	case "metadata":
		return n.metadata(v)
	case "locality", "ownership", "session_id":
	default:
		n.skipped++
	}
	return err
}

func (n *named) metadata(v any) (err error) {
	n.metadataSalt = ""
	if v == nil {
		return nil
	}
	list, ok := v.(pairs)
	if !ok {
		return errEvent
	}
	for _, p := range list {
		name, ok := p.key.(string)
		if !ok {
			return errEvent
		}
		switch name {
		case "cache_salt":
			if n.metadataSalt, err = toText(p.value); err != nil {
				return err
			}
		case "session_id":
		default:
			n.skipped++
		}
	}
	return nil
}

func (n *named) identity(engine string) {
	e := &n.e
	first := !e.HasParent
	if first {
		e.Salt = n.metadataSalt
	}
	switch n.spec {
	case nil, "full_attention", "mla_attention", "sink_full_attention":
	case "sliding_window", "sliding_window_mla":
		if e.Partial = n.window == 0; n.window > 0 {
			e.Tail = max(n.window-1, 1)
		}
	case "mamba":
		e.Tail = 1
	default:
		e.Partial = true
	}
	e.Unkeyed = n.hasLora && e.Adapter == ""
	if n.extra == nil {
		medium := strings.ToUpper(e.Medium)
		if engine != "SGLang" && len(e.Tokens) > 0 && medium != "" && medium != "GPU" {
			e.Unkeyed = true
		}
		return
	}
	list, ok := n.extra.([]any)
	if !ok || len(list) != 0 && len(list) != len(e.Hashes) {
		e.Unkeyed = true
		n.skipped++
		return
	}
	for block, keys := range list {
		if keys == nil {
			continue
		}
		keys, ok := keys.([]any)
		if !ok {
			e.Unkeyed = true
			n.skipped++
			continue
		}
		if len(keys) > 0 && e.Adapter != "" && keys[0] == any(e.Adapter) {
			keys = keys[1:]
		}
		saltAt := -1
		if block == 0 && first {
			for i, key := range keys {
				if s, ok := key.(string); ok {
					saltAt, e.Salt = i, s
				}
			}
		}
		for i, key := range keys {
			if i == saltAt || key == nil {
				continue
			}
			item, err := toItem(key)
			if err != nil {
				e.Unkeyed = true
				n.skipped++
				continue
			}
			item.Block = block
			e.Items = append(e.Items, item)
		}
	}
}

func toItem(key any) (kvevent.Item, error) {
	switch key := key.(type) {
	case string:
		return kvevent.Item{Key: key}, nil
	case []byte:
		return kvevent.Item{Key: fmt.Sprintf("%x", key)}, nil
	case []any:
		if len(key) == 2 {
			id, ok := key[0].(string)
			offset, ok2 := key[1].(int64)
			if ok && ok2 && offset <= 1<<62 {
				return kvevent.Item{Key: id, Offset: offset}, nil
			}
		}
	}
	return kvevent.Item{}, errEvent
}

func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	}
	return 0, false
}

func toHash(v any) (kvevent.Hash, error) {
	switch v := v.(type) {
	case int64:
		return kvevent.Hash(v), nil
	case uint64:
		return kvevent.Hash(v), nil
	case []byte:
		if len(v) >= 8 {
			var h kvevent.Hash
			for _, b := range v[len(v)-8:] {
				h = h<<8 | kvevent.Hash(b)
			}
			return h, nil
		}
	}
	return 0, errEvent
}

func toCount(v any) (int, error) {
	if v == nil {
		return 0, nil
	}
	if n, ok := v.(int64); ok && n >= 0 && n <= math.MaxInt32 {
		return int(n), nil
	}
	return 0, errEvent
}

func toText(v any) (string, error) {
	if v == nil {
		return "", nil
	}
	if s, ok := v.(string); ok {
		return s, nil
	}
	return "", errEvent
}
