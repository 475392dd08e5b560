package httpproxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// tokenRequest asks for eight tokens, by token ids.
const tokenRequest = `{"model":"m","prompt":[1,2,3],"max_tokens":8,"stream":true,"return_token_ids":true}`

// asked is what an engine reads of a request.
type asked struct {
	Prompt    []int `json:"prompt"`
	MaxTokens int   `json:"max_tokens"`
}

// counts answers as an engine whose next token is always the number of those before it: its text is that number and a blank.
// It sends at most so many tokens, and then ends by end; with 0 it sends all.
func counts(id string, most int, end func(w http.ResponseWriter), seen func(asked)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in asked
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if seen != nil {
			seen(in)
		}
		eventStream(w)
		for i := range in.MaxTokens {
			if most > 0 && i == most {
				end(w)
				return
			}
			finish, prompt, n := "null", "", len(in.Prompt)+i
			if i == in.MaxTokens-1 {
				finish = `"length"`
			}
			if i == 0 {
				list, _ := json.Marshal(in.Prompt)
				prompt = `,"prompt_token_ids":` + string(list)
			}
			choice := fmt.Sprintf(`{"index":0,"text":"%d ","finish_reason":%s,"token_ids":[%d]%s}`, n, finish, n, prompt)
			say(w, fmt.Sprintf(`data: {"id":%q,"created":1,"model":"m","choices":[%s]}`+"\n\n", id, choice))
		}
		say(w, doneOnly)
	}
}

// breaksOff ends the connection, behind a part of an event.
func breaksOff(w http.ResponseWriter) {
	say(w, `data: {"id":"a","choices":[{"index":0,"te`)
	panic(http.ErrAbortHandler)
}

// gives ends an answer with some events.
func gives(events string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { say(w, events) }
}

// answerOf reads a stream: its text, its token ids, and the ids that its events have.
func answerOf(t *testing.T, r *http.Response) (text string, tokens []int, ids map[string]bool, raw string, err error) {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	ids = map[string]bool{}
	for event := range strings.SplitSeq(string(b), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var e struct {
			ID      string
			Choices []struct {
				Text   string
				Tokens []int `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("the event %q: %v", data, err)
		}
		ids[e.ID] = true
		for _, c := range e.Choices {
			text += c.Text
			tokens = append(tokens, c.Tokens...)
		}
	}
	return text, tokens, ids, string(b), err
}

const allTokens = "3 4 5 6 7 8 9 10 "

// TestABrokenStreamIsContinuedFromTheTokensSent: the client sees one answer, with each token once and nothing of the break.
func TestABrokenStreamIsContinuedFromTheTokensSent(t *testing.T) {
	abort := `data: {"id":"a","choices":[{"index":0,"text":"","finish_reason":"abort","token_ids":[]}]}` + "\n\n" + doneOnly
	for name, end := range map[string]func(http.ResponseWriter){
		"the connection breaks within an event": breaksOff,
		"the stream ends":                       gives(""),
		"the engine aborts":                     gives(abort),
		"the engine reports an error":           gives(`data: {"error":{"message":"dead","code":500}}` + "\n\n" + doneOnly),
		"an end mark only":                      gives(doneOnly),
	} {
		for _, tokens := range []int{1, 5} {
			t.Run(fmt.Sprint(name, ", tokens ", tokens), func(t *testing.T) {
				t.Parallel()
				var rest atomic.Pointer[asked]
				first := engine(t, counts("a", tokens, end, nil))
				second := engine(t, counts("b", 0, nil, func(in asked) { rest.Store(&in) }))
				s := spec(first, second)
				s.Policy.ContinueStreams, s.Policy.AsksUsage = true, true
				h := newHouse(t, Options{}, s)
				text, got, ids, raw, err := answerOf(t, h.post("/v1/completions", tokenRequest))
				if err != nil || text != allTokens || fmt.Sprint(got) != "[3 4 5 6 7 8 9 10]" || !strings.HasSuffix(raw, doneOnly) {
					t.Fatalf("%v: %q, tokens %v in\n%s", err, text, got, raw)
				}
				if len(ids) != 1 || !ids["a"] || strings.Count(raw, "prompt_token_ids") != 1 || strings.Count(raw, "[DONE]") != 1 {
					t.Errorf("the client sees the change of engines, ids %v:\n%s", ids, raw)
				}
				if in := rest.Load(); len(in.Prompt) != 3+tokens || in.MaxTokens != 8-tokens {
					t.Errorf("the rest was asked for by %+v", in)
				}
				h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
				if n := h.picker.Stats()[0].Endpoints[0].Failures; n == 0 {
					t.Error("the failure is not counted")
				}
			})
		}
	}
}

// TestAStreamIsContinuedAgain until no target is left; then the client sees the break.
func TestAStreamIsContinuedAgain(t *testing.T) {
	s := spec(engine(t, counts("a", 2, breaksOff, nil)), engine(t, counts("b", 3, gives(""), nil)), engine(t, counts("c", 0, nil, nil)))
	s.Policy.ContinueStreams = true
	h := newHouse(t, Options{}, s)
	text, _, ids, raw, err := answerOf(t, h.post("/v1/completions", tokenRequest))
	if err == nil && text != allTokens || err != nil && !strings.HasPrefix(allTokens, text) || len(ids) != 1 {
		t.Errorf("%v: %q in\n%s", err, text, raw)
	}
	h.idle()
}

// TestTheLastEngineIsNotSeen: what it sends at its end is not for the client, whose stream it was not.
func TestTheLastEngineIsNotSeen(t *testing.T) {
	for name, end := range map[string]string{
		"an abort":       `data: {"id":"b","choices":[{"index":0,"text":"","finish_reason":"abort","token_ids":[]}]}` + "\n\n" + doneOnly,
		"an error":       `data: {"error":{"message":"dead","code":500}}` + "\n\n" + doneOnly,
		"another form":   "event: b\ndata: b\n\n" + doneOnly,
		"no end":         `data: {"id":"b"`,
		"half a token":   `data: {"id":"b","choices":[{"index":0,"text":"\ufffd","token_ids":[5]}]}` + "\n\n" + `data: {"id":"b"`,
		"no known event": `data: {"id":"b","choices":[{"text":"x"}]}` + "\n\n" + doneOnly,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec(engine(t, counts("a", 2, breaksOff, nil)), engine(t, counts("b", 1, gives(end), nil)))
			s.Policy.ContinueStreams = true
			h := newHouse(t, Options{}, s)
			text, _, ids, raw, err := answerOf(t, h.post("/v1/completions", tokenRequest))
			if text = strings.TrimSuffix(text, "\ufffd"); err == nil || text != "3 4 5 " || len(ids) != 1 || strings.Contains(raw, `"b`) {
				t.Errorf("%v: %q in\n%s", err, text, raw)
			}
			h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
		})
	}
}

// TestAnAbortPassesWhereNoOtherEngineContinues the answer.
func TestAnAbortPassesWhereNoOtherEngineContinues(t *testing.T) {
	abort := `data: {"id":"a","choices":[{"index":0,"text":"","finish_reason":"abort","token_ids":[]}]}` + "\n\n"
	s := spec(engine(t, counts("a", 2, gives(abort+doneOnly), nil)), engine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	s.Policy.ContinueStreams = true
	h := newHouse(t, Options{}, s)
	_, _, _, raw, err := answerOf(t, h.post("/v1/completions", tokenRequest))
	if err != nil || !strings.HasSuffix(raw, abort) {
		t.Errorf("%v\n%s", err, raw)
	}
	h.idle()
}

// TestWhatCannotBeContinuedBreaksAsBefore: each client gets what its engine has sent, and sees that there is no end.
func TestWhatCannotBeContinuedBreaksAsBefore(t *testing.T) {
	with := func(old, replacement string) string { return strings.Replace(tokenRequest, old, replacement, 1) }
	for name, tc := range map[string]struct {
		body   string
		off    bool
		second http.HandlerFunc
	}{
		"the policy does not ask for it": {body: tokenRequest, off: true},
		"a text":                         {body: with(`[1,2,3]`, `"a b c"`)},
		"a seed":                         {body: with(`{`, `{"seed":1,`)},
		"no token ids":                   {body: with(`"return_token_ids":true`, `"return_token_ids":false`)},
		"usage for the client":           {body: with(`{`, `{"stream_options":{"include_usage":true},`)},
		"the other engine refuses": {body: tokenRequest, second: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
		}},
		"the other engine does not serve": {body: tokenRequest, second: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		"the other engine has another prompt": {body: tokenRequest, second: saying(
			`data: {"id":"b","choices":[{"index":0,"text":"x","finish_reason":null,"token_ids":[9],"prompt_token_ids":[1,2,3]}]}` + "\n\n" + doneOnly)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var others atomic.Int64
			second := tc.second
			if second == nil {
				second = saying(token("x") + doneOnly)
			}
			s := spec(engine(t, func(w http.ResponseWriter, _ *http.Request) {
				eventStream(w)
				say(w, `data: {"id":"a","choices":[{"index":0,"text":"3 ","finish_reason":null,"token_ids":[3]}]}`+"\n\n")
				panic(http.ErrAbortHandler)
			}), engine(t, func(w http.ResponseWriter, r *http.Request) {
				others.Add(1)
				second(w, r)
			}))
			s.Policy.ContinueStreams = !tc.off
			h := newHouse(t, Options{}, s)
			text, _, ids, raw, err := answerOf(t, h.post("/v1/completions", tc.body))
			if err == nil || text != "3 " || len(ids) != 1 || !ids["a"] {
				t.Errorf("%v: %q in\n%s", err, text, raw)
			}
			if n := others.Load(); (n > 0) != (tc.second != nil) {
				t.Errorf("the other engine was asked %d times", n)
			}
			h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
		})
	}
}

// TestAStreamThatCrashesEnginesIsNotContinuedForEver: after two crashes the request is a suspect, and no other engine gets it.
func TestAStreamThatCrashesEnginesIsNotContinuedForEver(t *testing.T) {
	var served atomic.Int64
	var addresses []string
	for range 5 {
		addresses = append(addresses, engine(t, counts("a", 1, breaksOff, func(asked) { served.Add(1) })))
	}
	s := spec(addresses...)
	s.Policy.ContinueStreams, s.Policy.Attempts = true, 5
	h := newHouse(t, Options{}, s)
	text, _, _, _, err := answerOf(t, h.post("/v1/completions", tokenRequest))
	if err == nil || text != "3 4 " || served.Load() != 2 {
		t.Errorf("%v: %q of %d engines", err, text, served.Load())
	}
	h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
}

// TestAClientThatLeavesIsNotContinuedFor: no engine works for it, and none is blamed.
func TestAClientThatLeavesIsNotContinuedFor(t *testing.T) {
	var others atomic.Int64
	begun := make(chan struct{})
	s := spec(engine(t, counts("a", 1, func(w http.ResponseWriter) {
		close(begun)
		for {
			if _, err := io.WriteString(w, ": waiting\n\n"); err != nil {
				return
			}
			if http.NewResponseController(w).Flush() != nil {
				return
			}
		}
	}, nil)), engine(t, counts("b", 0, nil, func(asked) { others.Add(1) })))
	s.Policy.ContinueStreams = true
	h := newHouse(t, Options{}, s)
	r := h.post("/v1/completions", tokenRequest)
	await(t, "the first token", begun)
	_ = r.Body.Close()
	h.outcomes(map[picker.Outcome]int64{picker.ClientGone: 1})
	if others.Load() != 0 || h.picker.Stats()[0].Endpoints[0].Failures != 0 {
		t.Errorf("%d others were asked, %+v", others.Load(), h.picker.Stats()[0].Endpoints[0])
	}
}

// TestTheTimeOfTheRouteEndsAStreamThatCanBeContinued: no other engine is asked, and none is blamed.
func TestTheTimeOfTheRouteEndsAStreamThatCanBeContinued(t *testing.T) {
	t.Parallel()
	var others atomic.Int64
	first := named("first", engine(t, func(w http.ResponseWriter, r *http.Request) {
		counts("a", 1, func(http.ResponseWriter) { <-r.Context().Done() }, nil)(w, r)
	}), engine(t, counts("b", 0, nil, func(asked) { others.Add(1) })))
	first.Policy.ContinueStreams = true
	h := newHouse(t, Options{}, first)
	route := routeTo("first")
	route.Timeout = inTime // for the first token
	h.apply([]picker.Spec{first}, route)
	answer := h.post("/v1/completions", strings.Replace(tokenRequest, `"m"`, `"chat"`, 1))
	if text, err := io.ReadAll(answer.Body); err == nil {
		t.Errorf("the answer is complete: %s", text)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
	for i, ep := range h.picker.Stats()[0].Endpoints {
		if ep.Failures != 0 {
			t.Errorf("%d failures of endpoint %d", ep.Failures, i)
		}
	}
	if others.Load() != 0 || h.proxy.suspects.Any() {
		t.Errorf("%d other engines were asked; requests are suspect: %t", others.Load(), h.proxy.suspects.Any())
	}
}

// TestManyStreamsAreContinuedAtOnce, from engines that abort at different times.
func TestManyStreamsAreContinuedAtOnce(t *testing.T) {
	var n atomic.Int64
	flaky := func(id string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if i := n.Add(1) % 12; i < 7 {
				counts(id, int(i)+1, breaksOff, nil)(w, r)
				return
			}
			counts(id, 0, nil, nil)(w, r)
		}
	}
	s := spec(engine(t, flaky("a")), engine(t, flaky("b")), engine(t, flaky("c")))
	s.Policy.ContinueStreams = true
	h := newHouse(t, Options{}, s)
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			text, _, ids, raw, err := answerOf(t, h.post("/v1/completions", strings.Replace(tokenRequest, "3]", fmt.Sprint(100+i, "]"), 1)))
			if !strings.HasPrefix(allTokens, text) || len(ids) != 1 || err == nil && text != allTokens {
				t.Errorf("%v: %q in\n%s", err, text, raw)
			}
		})
	}
	all.Wait()
	h.idle()
}
