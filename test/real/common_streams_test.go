package real

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestStreamsWithoutUsageAreUnchanged: a client that does not ask for usage gets the engine's own stream, although the picker
// learns from it what the engine found in its cache.
func TestStreamsWithoutUsageAreUnchanged(t *testing.T) {
	engines := sharedEngines(t)
	p := startPicker(t, engines[:1], pickerConfig{})
	known := chat("usage", say("user", text("usage known", 100))).with(object{"stream": true})
	if a := p.send(known); a.status != http.StatusOK { // the first stream to an engine shows whether it reports unasked
		t.Fatalf("status %d, %v", a.status, a.err)
	}
	for name, r := range map[string]request{
		"a chat":               chat("usage", say("user", text("usage chat", 200))),
		"a chat of two":        chat("usage", say("user", text("usage n", 200))).with(object{"n": 2, "temperature": 1, "seed": 7}),
		"a chat without usage": chat("usage", say("user", text("usage false", 200))).with(object{"stream_options": object{"include_usage": false}}),
		"a text":               completion("usage", text("usage text", 200)),
		"a text of one token":  completion("usage", text("usage one", 200)).with(object{"max_tokens": 1}),
		"two texts":            completion("usage", []string{text("usage first", 100), text("usage second", 100)}),
		"a refused request":    completion("usage", text("usage refused", 200)).with(object{"max_tokens": -1}),
	} {
		t.Run(name, func(t *testing.T) {
			r := r.with(object{"stream": true})
			if r.body["temperature"] == nil {
				r.body["temperature"] = 0
			}
			status := http.StatusOK
			if name == "a refused request" {
				status = http.StatusBadRequest
			}
			// An engine can put two tokens into one event, or the events of two answers in another order, when it is busy.
			verdict(t, within(10*time.Second, func() error {
				plain, through := post(t.Context(), engines[0].url, r), p.send(r)
				if plain.err != nil || through.err != nil || plain.status != status || through.status != status {
					return fmt.Errorf("status %d and %d, want %d, errors %w and %w", plain.status, through.status, status, plain.err, through.err)
				}
				if want, got := unnamed(plain.body), unnamed(through.body); want != got || strings.Contains(got, `"usage":{`) {
					return fmt.Errorf("the engine's stream is\n%s\nthe picker's\n%s", want, got)
				}
				return nil
			}))
		})
	}
	verdict(t, within(patience, func() error {
		if n := p.metric("kvasir_delivered_hit_tokens_total"); n <= 0 {
			return fmt.Errorf("%v hits are known from streams without usage", n)
		}
		return nil
	}))
}

var namesAndTimes = regexp.MustCompile(`"(id|request_id)":"[^"]*"|"created":\d+`)

// unnamed is a body without ids and times.
func unnamed(body string) string { return namesAndTimes.ReplaceAllString(body, "") }
