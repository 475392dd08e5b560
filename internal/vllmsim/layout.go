package vllmsim

import (
	"fmt"
	"strings"
)

// Layout is an encoding of KV events, named for the first release that has it.
type Layout int

// The layouts. Each adds to the one before, until v0.24 turns events from arrays into maps.
const (
	Layout090  Layout = iota + 1 // batch [ts, events]
	Layout091                    // + data_parallel_rank in the batch
	Layout0102                   // + medium
	Layout014                    // + lora_name
	Layout017                    // + extra_keys
	Layout020                    // + group_idx
	Layout022                    // + kv_cache_spec_kind and kv_cache_spec_sliding_window
	Layout024                    // events are maps

	LayoutDefault = Layout024
)

var layoutNames = [...]string{
	Layout090: "v0.9.0", Layout091: "v0.9.1", Layout0102: "v0.10.2", Layout014: "v0.14", Layout017: "v0.17",
	Layout020: "v0.20", Layout022: "v0.22", Layout024: "v0.24",
}

// LayoutNames lists the layouts, oldest first.
func LayoutNames() []string { return layoutNames[Layout090:] }

// String is the release.
func (l Layout) String() string {
	if l < Layout090 || l > Layout024 {
		return fmt.Sprintf("Layout(%d)", int(l))
	}
	return layoutNames[l]
}

// ParseLayout returns the layout with the name of a release, with or without the v.
func ParseLayout(name string) (Layout, error) {
	for l := Layout090; l <= Layout024; l++ {
		if strings.TrimPrefix(name, "v") == layoutNames[l][1:] {
			return l, nil
		}
	}
	return 0, fmt.Errorf("unknown layout of KV events %q (known: %s)", name, strings.Join(LayoutNames(), ", "))
}
