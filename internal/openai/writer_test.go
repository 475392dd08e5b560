package openai

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"unicode/utf8"
)

// writer makes random requests: mostly sound ones, in every way that JSON can be written.
type writer struct {
	rng *rand.Rand
	b   []byte
}

func (w *writer) odds(n int) bool { return w.rng.IntN(n) == 0 }

func (w *writer) space() {
	for w.odds(8) {
		w.b = append(w.b, " \n\r\t"[w.rng.IntN(4)])
	}
}

func (w *writer) str(s string) {
	w.b = append(w.b, '"')
	for _, r := range s {
		switch {
		case strings.ContainsRune("\n\t\"\\/", r) && w.odds(2):
			w.b = append(w.b, '\\', strings.NewReplacer("\n", "n", "\t", "t").Replace(string(r))[0])
		case w.odds(10) && r > 0xffff:
			w.b = fmt.Appendf(w.b, `\u%04x\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		case w.odds(10) || r < ' ' || r == '"' || r == '\\':
			w.b = fmt.Appendf(w.b, `\u%04x`, min(r, 0xffff))
		default:
			w.b = utf8.AppendRune(w.b, r)
		}
	}
	w.b = append(w.b, '"')
}

func (w *writer) text() string {
	var s []rune
	n := w.rng.IntN(12)
	if w.odds(8) {
		n += 2 * minText
	}
	for range n {
		s = append(s, []rune("aB \n\t\"\\/é世😀\u2028\x7f\x00")[w.rng.IntN(14)])
	}
	return string(s)
}

func (w *writer) list(n int, each func()) {
	w.b = append(w.b, '[')
	for i := range n {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.space()
		each()
		w.space()
	}
	w.b = append(w.b, ']')
}

func (w *writer) object(keys []string, each func(key string)) {
	w.b = append(w.b, '{')
	for i := range w.rng.IntN(len(keys) + 2) {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		key := keys[w.rng.IntN(len(keys))]
		w.space()
		w.str(key)
		w.space()
		w.b = append(w.b, ':')
		w.space()
		each(key)
		w.space()
	}
	w.b = append(w.b, '}')
}

func (w *writer) number() {
	w.b = append(w.b, [...]string{
		"0", "1", "-1", "17", "4294967295", "4294967296", "1.5", "2.0", "1e3", "-0", "1E+2", "99999999999999999999", "1e400", "1e-400", "0.0",
	}[w.rng.IntN(15)]...)
}

func (w *writer) any(depth int) {
	switch n := w.rng.IntN(8); {
	case n == 0:
		w.number()
	case n == 1:
		w.b = append(w.b, "true"...)
	case n == 2:
		w.b = append(w.b, "false"...)
	case n == 3:
		w.b = append(w.b, "null"...)
	case n < 6 || depth == 0:
		w.str(w.text())
	case n == 6:
		w.list(w.rng.IntN(4), func() { w.any(depth - 1) })
	default:
		w.object([]string{"model", "prompt", "text", "type", "role", "a"}, func(string) { w.any(depth - 1) })
	}
}

func (w *writer) id() {
	if w.odds(40) {
		w.number()
		return
	}
	w.b = strconv.AppendUint(w.b, uint64(w.rng.Uint32N(200_000)), 10)
}

func (w *writer) value(key string) {
	if w.odds(12) {
		w.any(3)
		return
	}
	switch key {
	case "prompt", "input":
		switch w.rng.IntN(6) {
		case 4:
			w.value("messages")
		case 5:
			w.list(w.rng.IntN(3), func() { w.value("messages") })
		case 0:
			w.str(w.text())
		case 1:
			w.list(w.rng.IntN(4), func() { w.str(w.text()) })
		case 2:
			w.list(w.rng.IntN(30), w.id)
		default:
			w.list(w.rng.IntN(4), func() { w.list(w.rng.IntN(9), w.id) })
		}
	case "messages":
		keys := []string{"role", "content", "name"}
		if w.odds(4) {
			keys = []string{"role", "output", "name"}
		}
		w.list(w.rng.IntN(5), func() { w.object(keys, w.value) })
	case "role":
		w.str([]string{"user", "system", "developer", "assistant"}[w.rng.IntN(4)])
	case "content", "output", "system", "instructions":
		if w.odds(2) {
			w.str(w.text())
			break
		}
		w.list(w.rng.IntN(3), func() { w.object(partKeys, w.value) })
	case "type":
		w.str([]string{"text", "image_url", "refusal", "tool_result", "tool_use", "input_audio", "video", "x"}[w.rng.IntN(8)])
	case "image_url", "source", "file":
		if w.odds(2) {
			w.str("data:a" + w.text() + "," + w.text())
			break
		}
		w.object([]string{"url", "data", "file_id", "detail"}, w.value)
	case "stream_options":
		w.object([]string{"include_usage", "x"}, w.value)
	case "metadata":
		w.object([]string{"user_id", "x"}, w.value)
	case "truncation", "truncation_side":
		w.str([]string{"auto", "disabled", "right", "left"}[w.rng.IntN(4)])
	case "previous_response":
		w.object([]string{"x"}, w.value)
	case "stream", "include_usage", "echo", "use_beam_search", "add_special_tokens", "background":
		w.b = append(w.b, []string{"true", "false"}[w.rng.IntN(2)]...)
	case "n", "max_tokens", "max_completion_tokens", "max_output_tokens", "truncate_prompt_tokens", "prefix_len", "priority", "logprobs", "top_logprobs":
		w.number()
	default:
		w.str(w.text())
	}
}

var requestKeys = []string{
	"prompt", "messages", "stream_options", "stream", "echo", "use_beam_search", "add_special_tokens", "n", "max_tokens", "max_completion_tokens", "truncate_prompt_tokens",
	"prefix_len", "priority", "logprobs", "top_logprobs", "prompt_logprobs", "user", "cache_salt", "tools", "model", "prompt_embeds", "x",
	"input", "system", "instructions", "metadata", "truncation", "truncation_side", "background", "previous_response_id", "previous_response", "max_output_tokens",
}

var partKeys = []string{"type", "text", "image_url", "type", "text", "image_url", "uuid", "source", "file", "file_id", "content"}

// request is a random body, which is now and then damaged.
func (w *writer) request() []byte {
	w.b = append(w.b[:0], `{"model":"m","prompt":[1],"messages":[],"input":"x","z":`...)
	w.any(3)
	w.b = append(w.b, ',')
	at := len(w.b)
	w.object(requestKeys, w.value)
	if len(w.b) == at+2 {
		w.b = w.b[:at-1]
		w.b = append(w.b, '}')
	} else {
		w.b = append(w.b[:at], w.b[at+1:]...)
	}
	for len(w.b) > 0 && w.odds(6) {
		i := w.rng.IntN(len(w.b))
		switch w.rng.IntN(3) {
		case 0:
			w.b = append(w.b[:i], w.b[i+1:]...)
		case 1:
			w.b[i] = byte(w.rng.Uint32())
		default:
			w.b = w.b[:i+1]
		}
	}
	return w.b
}
