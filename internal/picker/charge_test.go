package picker

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// charged lets acme ask, plays the answer, and returns what acme was charged for besides the prompt.
func charged(t *testing.T, fields string, play func(c *clock, d *Decision)) int64 {
	t.Helper()
	c := newClock()
	spec := testSpec(t, 1)
	spec.Policy.Admission.Tenants = tenants(t, true)
	p := newPicker(t, c, spec)
	d, err := p.Pick(context.Background(), &Request{
		Route: openai.Completions, Body: withFields(completion("m", 0, 100, true), cmp.Or(fields, `"user":"u"`)),
		Header: func(string) string { return "Bearer key-of-acme" },
	})
	if err != nil {
		t.Fatal(err)
	}
	play(c, d)
	d.End(Completed)
	return p.Stats()[0].Tenants["acme"].Tokens - 100
}

// stream plays n events of an answer, each with a word.
func stream(d *Decision, encoding string, n int, word string) *Answer {
	a := &Answer{}
	a.Start(d, 200, "text/event-stream", encoding)
	for range n {
		a.Write(fmt.Appendf(nil, "data: {\"choices\":[{\"index\":0,\"text\":%q}]}\n\n", word))
	}
	return a
}

// TestATenantIsChargedForWhatWasSent: whether or not the engine counts tokens, and whichever side ends the answer.
func TestATenantIsChargedForWhatWasSent(t *testing.T) {
	const many = 1757
	for name, tc := range map[string]struct {
		fields      string
		play        func(c *clock, d *Decision)
		least, most int64
	}{
		"a stream without usage": {"", func(_ *clock, d *Decision) { stream(d, "", many, " word").Close() }, many, many},
		"a stream with usage": {"", func(_ *clock, d *Decision) {
			a := stream(d, "", many, " word")
			a.Write([]byte("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":2000}}\n\n"))
			a.Close()
		}, 2000, 2000},
		"several tokens in each event": {"", func(_ *clock, d *Decision) { stream(d, "", 100, strings.Repeat(" word", 20)).Close() }, 1600, 2000},
		"a client that hangs up": {"", func(_ *clock, d *Decision) {
			stream(d, "", many, " word")
			d.End(ClientGone)
		}, many, many},
		"a client that hangs up before an answer": {"", func(c *clock, d *Decision) {
			c.advance(4 * time.Second)
			d.End(ClientGone)
		}, 200, 200},
		"a compressed stream": {`"max_tokens":5000`, func(_ *clock, d *Decision) { stream(d, "gzip", many, " word").Close() }, many, 5000},
		"JSON without usage": {"", func(_ *clock, d *Decision) {
			var a Answer
			a.Start(d, 200, "application/json", "")
			a.Write([]byte(`{"choices":[{"text":"` + strings.Repeat(" word", 1000) + `"}]}`))
			a.Close()
		}, 1000, 1500},
		"a gateway that does not show the answer": {"", func(c *clock, d *Decision) {
			c.advance(2 * time.Second)
			d.Leave(Unreported)
		}, 100, 100},
		"an error": {"", func(_ *clock, d *Decision) {
			var a Answer
			a.Start(d, 400, "application/json", "")
			a.Write([]byte(`{"error":{"message":"` + strings.Repeat("x", 1000) + `"}}`))
			outcome, _ := a.Close()
			d.End(outcome)
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if n := charged(t, tc.fields, tc.play); n < tc.least || n > tc.most {
				t.Errorf("%d tokens were charged, want %d to %d", n, tc.least, tc.most)
			}
		})
	}
}

// TestNoAnswerChargesMoreThanTheRequestAllows: an engine's count is not believed beyond that.
func TestNoAnswerChargesMoreThanTheRequestAllows(t *testing.T) {
	for name, tc := range map[string]struct {
		fields string
		want   int64
	}{
		"with a limit":                 {`"max_tokens":50`, 50},
		"with a limit, of two answers": {`"max_tokens":50,"n":2`, 100},
		"without a limit":              {"", maxKeyed},
	} {
		for _, count := range []string{"9e99", "99999999999999999999", "2147483647"} {
			n := charged(t, tc.fields, func(_ *clock, d *Decision) {
				a := stream(d, "", 3, " word")
				a.Write([]byte("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9e99,\"completion_tokens\":" + count + "}}\n\n"))
				a.Close()
			})
			if n > tc.want {
				t.Errorf("%s: %s tokens are said, %d were charged, want at most %d", name, count, n, tc.want)
			}
		}
	}
}

// TestTheModelsLengthBoundsWhatIsCharged: where the engine reports it.
func TestTheModelsLengthBoundsWhatIsCharged(t *testing.T) {
	c := newClock()
	spec := testSpec(t, 1)
	p := newPicker(t, c, spec)
	p.ObserveModels(spec.Endpoints[0].ID, []ListedModel{{Name: "m", MaxLen: 8192}})
	d := pick(t, p, completion("m", 0, 100, true))
	if n := d.allowance(); n != 8192 {
		t.Errorf("%d tokens may be charged", n)
	}
	d.End(Completed)
}
