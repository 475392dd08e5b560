package openai

import "slices"

// Cuts reports whether a prompt of so many tokens is truncated.
func (r *Request) Cuts(tokens int) bool { return r.TruncatePrompt > 0 && tokens > r.TruncatePrompt }

// KeepsSpecial reports whether the truncation keeps the special tokens around the prompt. Without truncation_side, vLLM leaves the
// truncation to the tokenizer, which adds them afterwards; otherwise it cuts all ids (vllm/renderers/params.py).
func (r *Request) KeepsSpecial() bool { return !r.SideGiven }

// AddsSpecial reports whether special tokens are added around the prompt: the engine's default for texts, and for Responses, whose
// template can have put them there already.
func (r *Request) AddsSpecial() bool {
	if r.AddSpecialTokens != nil {
		return *r.AddSpecialTokens
	}
	return r.Route == Completions || r.Route == Embeddings || r.Route == Responses
}

// Truncate returns the part of a prompt's ids that the engine keeps. plain are the ids without special tokens, where Cuts and
// KeepsSpecial; it is not read otherwise. ok is false if what the engine keeps is not known. Without truncation_side, engines that
// generate keep the end of the prompt, and others, which serve embeddings, its beginning (vllm/tokenizers/registry.py).
func (r *Request) Truncate(ids, plain []uint32) (kept []uint32, ok bool) {
	n, special := r.TruncatePrompt, len(ids)-len(plain)
	first := r.KeepFirst
	if !r.SideGiven {
		first = r.Route == Embeddings
	}
	switch {
	case !r.Cuts(len(ids)):
		return ids, r.TruncatePrompt >= 0
	case first && (r.SideGiven || special == 0):
		return ids[:n], true
	case r.SideGiven || special == 0:
		return ids[len(ids)-n:], true
	case special < 0 || special >= n:
		return nil, false
	}
	for before := range special + 1 {
		if !slices.Equal(ids[before:before+len(plain)], plain) {
			continue
		}
		kept := plain[len(plain)-(n-special):]
		if first {
			kept = plain[:n-special]
		}
		return slices.Concat(ids[:before], kept, ids[before+len(plain):]), true
	}
	return nil, false
}
