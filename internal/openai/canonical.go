package openai

import (
	"bytes"
	"slices"
)

// ignored are the top-level fields that change nothing in the answer to a request, by its route. In vLLM 0.32 user and metadata are read
// by no code but that of Responses, whose answers repeat them, and priority is for the scheduler alone. Fields that are not listed can
// change the answer, known or not.
var ignored = [numRoutes][]string{
	Completions:     {"user", "priority"},
	ChatCompletions: {"user", "priority"},
	Embeddings:      {"user", "priority"},
	Messages:        {"metadata"},
}

// unprompted are the top-level fields that change nothing in the ids of a prompt on any route: how the answer is sampled, sent and ended.
// max_tokens is none of them, because a prompt can be truncated to what it leaves.
var unprompted = []string{
	"user", "priority", "metadata", "cache_salt", "request_id", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "seed",
	"n", "best_of", "stop", "stop_sequences", "stop_token_ids", "min_tokens", "ignore_eos", "presence_penalty", "frequency_penalty",
	"repetition_penalty", "logprobs", "top_logprobs", "logit_bias",
}

// AppendCanonicalPrompt is AppendCanonical for requests that are compared by the ids of their prompts.
func (r *Request) AppendCanonicalPrompt(dst []byte) (out []byte, ok bool) {
	return r.appendCanonical(dst, unprompted)
}

// AppendCanonical appends the text of the body by which it is compared with other ones: without white space, without the fields that
// change nothing in the answer, and with the others in the order of their names. Bodies of equal texts are the same request to an engine.
// The opposite does not hold: numbers and strings are compared as they are written, and the order within values counts, because engines
// write tools into prompts in that order. ok is false for bodies that are not compared: with a byte order mark, a name twice, a name
// that is written with an escape, or more than 256 fields.
func (r *Request) AppendCanonical(dst []byte) (out []byte, ok bool) {
	return r.appendCanonical(dst, ignored[r.Route])
}

func (r *Request) appendCanonical(dst []byte, without []string) (out []byte, ok bool) {
	if r.overflow || bytes.HasPrefix(r.body, byteOrderMark) {
		return dst, false
	}
	name := func(f fieldSpan) []byte { return f.key.of(r.body) }
	fields := slices.Clone(r.fields)
	slices.SortFunc(fields, func(a, b fieldSpan) int { return bytes.Compare(name(a), name(b)) })
	dst = append(dst, '{')
	for i, f := range fields {
		if f.key.escaped || i > 0 && bytes.Equal(name(f), name(fields[i-1])) {
			return dst, false
		}
		if slices.Contains(without, string(name(f))) {
			continue
		}
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), name(f)...), '"', ':')
		dst = appendCompact(dst, r.body[f.at:f.end])
	}
	return append(dst, '}'), true
}

// appendCompact appends a JSON value without the white space outside of strings.
func appendCompact(dst, value []byte) []byte {
	for i := 0; i < len(value); {
		switch value[i] {
		case ' ', '\n', '\r', '\t':
			i++
			continue
		case '"':
			end := i + 1
			for end < len(value) && value[end] != '"' {
				if value[end] == '\\' {
					end++
				}
				end++
				end += plain(value[min(end, len(value)):])
			}
			end = min(end+1, len(value))
			dst = append(dst, value[i:end]...)
			i = end
		default:
			dst = append(dst, value[i])
			i++
		}
	}
	return dst
}
