package openai

import (
	"bytes"
	"hash"
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

// canonicalPiece is about how much of a text is written at once, in bytes. Strings that are longer are written from the body itself.
const canonicalPiece = 4 << 10

// WriteCanonicalPrompt is WriteCanonical for requests that are compared by the ids of their prompts.
func (r *Request) WriteCanonicalPrompt(w hash.Hash) (ok bool) {
	return r.writeCanonical(w, unprompted, nil)
}

// WriteCanonical writes the text of the body by which it is compared with other ones: without white space, without the fields that
// change nothing in the answer, and with the others in the order of their names. Bodies of equal texts are the same request to an engine.
// The opposite does not hold: numbers and strings are compared as they are written, and the order within values counts, because engines
// write tools into prompts in that order. ok is false for bodies that are not compared: with a byte order mark, a name twice, a name
// that is written with an escape, or more than 256 fields; then a part of the text can have been written. The text is never in memory as
// a whole, so however many requests are compared, none has a copy of its body.
func (r *Request) WriteCanonical(w hash.Hash) (ok bool) {
	return r.writeCanonical(w, ignored[r.Route], nil)
}

// writeCanonical writes the text without some fields, and with an empty string in place of each of some strings.
func (r *Request) writeCanonical(w hash.Hash, without []string, blank []span) (ok bool) {
	if r.overflow || bytes.HasPrefix(r.body, byteOrderMark) {
		return false
	}
	name := func(f fieldSpan) []byte { return f.key.of(r.body) }
	fields := slices.Clone(r.fields)
	slices.SortFunc(fields, func(a, b fieldSpan) int { return bytes.Compare(name(a), name(b)) })
	c := canonicalText{out: w, piece: make([]byte, 0, canonicalPiece)}
	before := "{"
	for i, f := range fields {
		if f.key.escaped || i > 0 && bytes.Equal(name(f), name(fields[i-1])) {
			return false
		}
		if slices.Contains(without, string(name(f))) {
			continue
		}
		c.add([]byte(before + `"`))
		c.add(name(f))
		c.add([]byte(`":`))
		at := f.at
		for _, s := range blank {
			if s.beg > at && s.end < f.end {
				c.addCompact(r.body[at : s.beg-1])
				c.add([]byte(`""`))
				at = s.end + 1
			}
		}
		c.addCompact(r.body[at:f.end])
		before = ","
	}
	if before == "{" {
		c.add([]byte(before))
	}
	c.add([]byte{'}'})
	c.flush()
	return true
}

// canonicalText is the text of a body on its way into a hash.
type canonicalText struct {
	out   hash.Hash
	piece []byte // not written yet
}

func (c *canonicalText) add(p []byte) {
	if len(c.piece)+len(p) > cap(c.piece) {
		c.flush()
	}
	if len(p) > cap(c.piece) {
		c.out.Write(p) // a hash takes everything
		return
	}
	c.piece = append(c.piece, p...)
}

func (c *canonicalText) flush() {
	c.out.Write(c.piece)
	c.piece = c.piece[:0]
}

// addCompact adds a JSON value without the white space outside of strings.
func (c *canonicalText) addCompact(value []byte) {
	for i := 0; i < len(value); {
		end := i + 1
		switch value[i] {
		case ' ', '\n', '\r', '\t':
			i++
			continue
		case '"':
			for end < len(value) && value[end] != '"' {
				if value[end] == '\\' {
					end++
				}
				end++
				end += plain(value[min(end, len(value)):])
			}
			end = min(end+1, len(value))
		default:
			for end < len(value) && value[end] > ' ' && value[end] != '"' {
				end++
			}
		}
		c.add(value[i:end])
		i = end
	}
}
