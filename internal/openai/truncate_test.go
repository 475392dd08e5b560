package openai

import (
	"slices"
	"testing"
)

// What pydantic 2 makes of texts where a whole number is asked for; 0 also for what it refuses.
func TestNumbersInWords(t *testing.T) {
	for _, tc := range []struct {
		text string
		want int
	}{
		{"150", 150}, {" 150 ", 150}, {"1_000", 1000}, {"1.0", 1}, {"1.00", 1}, {"+5", 5}, {"-3", -3}, {"05", 5}, {"99999999999", 1<<31 - 1},
		{"", 0}, {"1.5", 0}, {"1e2", 0}, {"0x10", 0}, {"٣", 0}, {"--1", 0}, {"+-1", 0}, {"1__0", 0}, {"_1", 0}, {"1_", 0}, {"1.", 0}, {".0", 0},
		{"one", 0},
	} {
		if got := wordNumber(tc.text); got != tc.want {
			t.Errorf("%q is read as %d, want %d", tc.text, got, tc.want)
		}
	}
}

// TestTruncationKeepsSpecialTokens: the ids of transformers for [BOS] a b c d e f g [EOS], with max_length and truncation_side
// left or, for embeddings, right.
func TestTruncationKeepsSpecialTokens(t *testing.T) {
	const bos, eos = 100, 101
	around := []uint32{bos, 1, 2, 3, 4, 5, 6, 7, eos}
	front := around[:8]
	plain := around[1:8]
	for name, tc := range map[string]struct {
		r          Request
		ids, plain []uint32
		want       []uint32
		unknown    bool
	}{
		"in front":                    {Request{TruncatePrompt: 4}, front, plain, []uint32{bos, 5, 6, 7}, false},
		"around":                      {Request{TruncatePrompt: 4}, around, plain, []uint32{bos, 6, 7, eos}, false},
		"none":                        {Request{TruncatePrompt: 4}, plain, plain, []uint32{4, 5, 6, 7}, false},
		"a side is given":             {Request{TruncatePrompt: 4, SideGiven: true}, around, nil, []uint32{5, 6, 7, eos}, false},
		"the right side is cut":       {Request{TruncatePrompt: 4, SideGiven: true, KeepFirst: true}, around, nil, []uint32{bos, 1, 2, 3}, false},
		"embeddings":                  {Request{TruncatePrompt: 4, Route: Embeddings}, around, plain, []uint32{bos, 1, 2, eos}, false},
		"ids of embeddings":           {Request{TruncatePrompt: 4, Route: Embeddings}, plain, plain, []uint32{1, 2, 3, 4}, false},
		"embeddings, a side is given": {Request{TruncatePrompt: 4, Route: Embeddings, SideGiven: true}, around, nil, []uint32{5, 6, 7, eos}, false},
		"short enough":                {Request{TruncatePrompt: 9}, around, plain, around, false},
		"no truncation":               {Request{}, around, nil, around, false},
		"as few as special tokens":    {Request{TruncatePrompt: 2}, around, plain, nil, true},
		"other ids without the marks": {Request{TruncatePrompt: 4}, front, []uint32{9, 9, 9, 9, 9, 9, 9}, nil, true},
		"more ids without the marks":  {Request{TruncatePrompt: 4}, plain, around, nil, true},
	} {
		got, ok := tc.r.Truncate(slices.Clone(tc.ids), tc.plain)
		if !slices.Equal(got, tc.want) || ok == tc.unknown {
			t.Errorf("%s: %v, known %t, want %v", name, got, ok, tc.want)
		}
	}
}
