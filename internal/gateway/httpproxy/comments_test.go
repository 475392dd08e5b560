package httpproxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/admission"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// sseEvent is an event as the SDKs of OpenAI and Anthropic parse them: lines that begin with a colon are passed over, a blank
// line ends an event, and one without name and data is none.
type sseEvent struct{ name, data string }

func sseEvents(stream string) (events []sseEvent) {
	var now sseEvent
	for line := range strings.SplitSeq(stream, "\n") {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && now != sseEvent{}:
			events, now = append(events, now), sseEvent{}
		case line == "", field == "":
		case field == "event":
			now.name = value
		case field == "data":
			now.data += value
		default:
			events = append(events, sseEvent{"not understood", line})
		}
	}
	return events
}

// sseError is the message of the error that an SDK raises for an event: Anthropic's for the name error, OpenAI's for an object
// with an error; events of Responses are errors by their type.
func sseError(t *testing.T, path string, e sseEvent) string {
	t.Helper()
	var data struct {
		Type, Message string
		Error         struct{ Message, Type string }
	}
	if err := json.Unmarshal([]byte(e.data), &data); err != nil {
		t.Fatalf("%q: %v", e.data, err)
	}
	switch path {
	case "/v1/messages":
		if e.name == "error" && data.Type == "error" && data.Error.Type != "" {
			return data.Error.Message
		}
	case "/v1/responses":
		if e.name == "error" && data.Type == "error" {
			return data.Message
		}
	default:
		if e.name == "" {
			return data.Error.Message
		}
	}
	return ""
}

// streamedBodies are requests for streams, by path.
var streamedBodies = map[string]string{
	"/v1/completions":      streamed,
	"/v1/chat/completions": `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}`,
	"/v1/messages":         `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"stream":true}`,
	"/v1/responses":        `{"model":"m","input":"x","stream":true}`,
}

// silent is an engine that answers a request once goOn has a value.
func silent(goOn <-chan struct{}, then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		<-goOn
		then(w, r)
	}
}

// commenting is a pool whose clients get comments.
func commenting(addresses ...string) picker.Spec {
	s := spec(addresses...)
	s.Policy.Comments = 5 * time.Millisecond
	return s
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// aborts is an engine that closes the connection.
func aborts(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// twoComments reads the answer's beginning: two comments, which come before the engine has answered.
func twoComments(t *testing.T, r *http.Response) {
	t.Helper()
	begin := make([]byte, 2*len(comment))
	if _, err := io.ReadFull(r.Body, begin); err != nil || string(begin) != comment+comment {
		t.Fatalf("the answer begins with %q, %v", begin, err)
	}
	if kind := r.Header.Get("Content-Type"); r.StatusCode != 200 || !picker.IsEventStream(kind) || r.Header.Get("X-Request-Id") == "" {
		t.Errorf("status %d, header %v", r.StatusCode, r.Header)
	}
}

// TestASilentClientGetsComments until the first event; the events are those of the engine, of whichever of them has answered.
func TestASilentClientGetsComments(t *testing.T) {
	const good = `data: {"choices":[{"index":0,"delta":{"content":"a"},"text":"a","finish_reason":null}]}` + "\n\n" + doneOnly
	for name, first := range map[string]http.HandlerFunc{
		"the first engine answers":             saying(good),
		"it aborts":                            aborts,
		"it answers with an error":             status(500, `{}`),
		"it gives the request up":              saying(doneOnly),
		"its queue is full":                    status(503, fullBody),
		"its stream begins with its own words": saying(": engine\n\n" + good),
	} {
		t.Run(name, func(t *testing.T) {
			goOn := make(chan struct{})
			h := newHouse(t, Options{Hold: time.Millisecond}, commenting(engine(t, silent(goOn, first)), engine(t, saying(good))))
			r := h.post("/v1/chat/completions", streamedBodies["/v1/chat/completions"])
			twoComments(t, r)
			close(goOn)
			got := sseEvents(read(t, r))
			if want := sseEvents(good); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("events %q, want %q", got, want)
			}
			h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
		})
	}
}

// TestAnErrorAfterACommentIsAnEvent in the form of the API.
func TestAnErrorAfterACommentIsAnEvent(t *testing.T) {
	const kaputt = `{"error":{"message":"kaputt","type":"BadRequestError","param":null,"code":400}}`
	for name, tc := range map[string]struct {
		engine  http.HandlerFunc
		want    string
		outcome picker.Outcome
	}{
		"the request is at fault": {status(400, kaputt), "kaputt", picker.Rejected},
		"all engines fail":        {status(500, kaputt), "kaputt", picker.Failed},
		"an error of old engines": {status(400, `{"object":"error","message":"kaputt","code":400}`), "kaputt", picker.Rejected},
		"an error without words":  {status(500, `<html>`), "The engine answered with an error.", picker.Failed},
		"no stream":               {status(200, `{"choices":[]}`), "The engine answered with an error.", picker.Failed},
		"all engines abort":       {aborts, "No engine could be reached.", picker.Failed},
		"all engines give it up":  {saying(doneOnly), "The engine has given the request up.", picker.Failed},
		"a stream in a coding is no use": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			saying(doneOnly)(w, r)
		}, "The engine answered with an error.", picker.Failed},
	} {
		for path, body := range streamedBodies {
			t.Run(name+", "+path, func(t *testing.T) {
				t.Parallel()
				goOn := make(chan struct{})
				h := newHouse(t, Options{}, commenting(engine(t, silent(goOn, tc.engine))))
				r := h.post(path, body)
				twoComments(t, r)
				close(goOn)
				rest := read(t, r)
				events := sseEvents(rest)
				if len(events) == 0 || sseError(t, path, events[0]) != tc.want {
					t.Fatalf("events %q, want an error %q", events, tc.want)
				}
				if done := strings.HasSuffix(rest, doneOnly); done != (path == "/v1/completions" || path == "/v1/chat/completions") {
					t.Errorf("%q: done %v", rest, done)
				}
				h.outcomes(map[picker.Outcome]int64{tc.outcome: 1})
			})
		}
	}
}

// TestARequestInTheQueueGetsComments, and an event when it has waited for too long.
func TestARequestInTheQueueGetsComments(t *testing.T) {
	t.Parallel()
	s := commenting(nobodyAt(t))
	s.Endpoints[0].Ready = false
	s.Policy.Admission = picker.AdmissionSpec{
		Queue: true, Limits: admission.Limits{Requests: 3, Bytes: 1 << 30, TTL: inTime, Hold: inTime},
	}
	h := newHouse(t, Options{}, s)
	r := h.post("/v1/completions", streamed)
	twoComments(t, r)
	events := sseEvents(read(t, r))
	if len(events) != 2 || sseError(t, "/v1/completions", events[0]) == "" {
		t.Errorf("events %q", events)
	}
}

// TestOtherClientsGetNoComments: the answer is the engine's, byte for byte.
func TestOtherClientsGetNoComments(t *testing.T) {
	const finished = `{"choices":[{"finish_reason":"stop","text":"a"}]}`
	unstreamed := strings.Replace(streamed, `,"stream":true`, "", 1)
	for name, tc := range map[string]struct {
		body, answer string
		status       int
		every, wait  time.Duration
	}{
		"an answer in time":   {streamed, token("a") + doneOnly, 200, time.Hour, 0},
		"an error in time":    {streamed, fullBody, 400, time.Hour, 0},
		"no stream":           {unstreamed, finished, 200, time.Millisecond, 30 * time.Millisecond},
		"a policy without":    {streamed, token("a") + doneOnly, 200, 0, 30 * time.Millisecond},
		"an error, no stream": {`{"model":"m","prompt":[1]}`, fullBody, 400, time.Millisecond, 30 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec(engine(t, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(tc.wait) // an engine that computes
				if tc.status == 200 {
					saying(tc.answer)(w, r)
					return
				}
				status(tc.status, tc.answer)(w, r)
			}))
			s.Policy.Comments = tc.every
			h := newHouse(t, Options{}, s)
			r := h.post("/v1/completions", tc.body)
			if got := read(t, r); got != tc.answer || r.StatusCode != tc.status {
				t.Errorf("answer %d %q, want %d %q", r.StatusCode, got, tc.status, tc.answer)
			}
		})
	}
}
