package httpproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// What vLLM 0.32.0 answers, status 200, while it shuts down (prompts of token ids), is paused or is put to sleep.
const (
	doneOnly     = "data: [DONE]\n\n"
	roleOnly     = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}` + "\n\n" + doneOnly
	abortedChat  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n" + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}` + "\n\n" + doneOnly
	abortedJSON  = `{"id":"cmpl-1","object":"text_completion","model":"m","choices":[{"index":0,"text":"half an ans","finish_reason":"abort"}],"usage":{"prompt_tokens":30,"completion_tokens":3}}`
	fullEvent    = `data: {"error": {"message": "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.", "type": "Service Unavailable", "param": null, "code": 503}}` + "\n\n" + doneOnly
	fullBody     = `{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}`
	failedEvent  = `data: {"error":{"message":"EngineCore died","type":"InternalServerError","param":null,"code":500}}` + "\n\n" + doneOnly
	refusedEvent = `data: {"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}` + "\n\n" + doneOnly
)

const chat = `{"model":"m","messages":[{"role":"user","content":"x"}]}`

// saying is an engine that answers 200 with a body: events if it looks like some, else JSON.
func saying(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(body, "data:") || strings.HasPrefix(body, ":") {
			eventStream(w)
		}
		say(w, body)
	}
}

func TestAnAnswerThatTheEngineGaveUpIsTriedElsewhere(t *testing.T) {
	const good = `data: {"choices":[{"index":0,"delta":{"content":"Hello"},"text":"Hello","finish_reason":"stop"}]}` + "\n\n" + doneOnly
	cases := map[string]struct {
		path, first string
		// status and body that the client gets, where not the good answer of the second engine.
		status int
		want   string
		// failures of the first engine.
		failures int64
	}{
		"a stream with its end mark only":        {path: "/v1/completions", first: doneOnly, failures: 1},
		"a chat with its role only":              {path: "/v1/chat/completions", first: roleOnly, failures: 1},
		"a chat aborted before its first token":  {path: "/v1/chat/completions", first: abortedChat, failures: 1},
		"aborted JSON, with a part of an answer": {path: "/v1/completions", first: abortedJSON, failures: 1},
		"a body without a byte":                  {path: "/v1/completions", first: "", failures: 1},
		"comments and the end":                   {path: "/v1/completions", first: ": ping\n\n", failures: 1},
		"an error as the first event":            {path: "/v1/completions", first: failedEvent, failures: 1},
		"a client's error as the first event":    {path: "/v1/completions", first: refusedEvent, status: 200, want: refusedEvent},
		"JSON of a client's error":               {path: "/v1/completions", first: `{"error":{"code":400}}`, status: 200, want: `{"error":{"code":400}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, spec(engine(t, saying(tc.first)), engine(t, saying(good))))
			status, want, outcome := tc.status, tc.want, picker.Rejected
			if status == 0 {
				status, want, outcome = 200, good, picker.Completed
			}
			r := h.post(tc.path, map[string]string{"/v1/completions": streamed, "/v1/chat/completions": chat}[tc.path])
			if got := read(t, r); r.StatusCode != status || got != want {
				t.Errorf("answer %d %q, want %d %q", r.StatusCode, got, status, want)
			}
			h.outcomes(map[picker.Outcome]int64{outcome: 1})
			if n := h.picker.Stats()[0].Endpoints[0].Failures; n != tc.failures {
				t.Errorf("%d failures, want %d", n, tc.failures)
			}
		})
	}
}

func TestWhenAllEnginesGiveUpTheClientIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		first, body string
		status      int
	}{
		"aborted":               {abortedJSON, `"engine_gave_up"`, 503},
		"empty streams":         {doneOnly, `"engine_gave_up"`, 503},
		"the error of the last": {failedEvent, "EngineCore died", 200},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Options{}, spec(engine(t, saying(tc.first)), engine(t, saying(tc.first))))
			r := h.post("/v1/completions", streamed)
			if got := read(t, r); r.StatusCode != tc.status || !strings.Contains(got, tc.body) || tc.status == 503 && r.Header.Get("Retry-After") != "1" {
				t.Errorf("answer %d %q, Retry-After %q", r.StatusCode, got, r.Header.Get("Retry-After"))
			}
			h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
		})
	}
}

func TestAnEngineThatGivesUpIsPickedNoMore(t *testing.T) {
	var wasted atomic.Int64
	down := engine(t, func(w http.ResponseWriter, r *http.Request) { wasted.Add(1); saying(abortedJSON)(w, r) })
	s := spec(down, engine(t, saying(`{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`)))
	s.Policy.CircuitFailures, s.Policy.CircuitOpen = 3, time.Hour
	h := newHouse(t, Options{}, s)
	for range 40 {
		if r := h.post("/v1/completions", streamed); r.StatusCode != 200 {
			t.Fatalf("status %d: %s", r.StatusCode, read(t, r))
		} else if got := read(t, r); !strings.Contains(got, "stop") {
			t.Fatalf("%q", got)
		}
	}
	if n := wasted.Load(); n != 3 {
		t.Errorf("the engine that gives up got %d requests, want 3", n)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 40})
}

// Engines that shut down go on with what they run: its tokens do not close the circuit.
func TestAnswersToRequestsFromBeforeAFailureDoNotCloseTheCircuit(t *testing.T) {
	running, goOn := make(chan struct{}), make(chan struct{})
	var calls, late atomic.Int64
	old := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if calls.Add(1) == 1 {
			eventStream(w)
			say(w, token("a"))
			close(running)
			<-goOn
			say(w, token("b")+doneOnly)
			return
		}
		late.Add(1)
		saying(doneOnly)(w, r)
	})
	s := spec(old, engine(t, saying(token("c")+doneOnly)))
	s.Policy.CircuitFailures, s.Policy.CircuitOpen = 1, time.Hour
	h := newHouse(t, Options{}, s)
	first := make(chan string, 1)
	go func() { first <- read(t, h.post("/v1/completions", streamed)) }()
	await(t, "the first request runs", running)
	read(t, h.post("/v1/completions", streamed)) // round robin: the second engine
	read(t, h.post("/v1/completions", streamed)) // given up, tried elsewhere
	close(goOn)
	if got := await(t, "the first answer", first); got != token("a")+token("b")+doneOnly {
		t.Errorf("%q", got)
	}
	h.idle()
	for range 6 {
		read(t, h.post("/v1/completions", streamed))
	}
	if n := late.Load(); n != 1 {
		t.Errorf("the engine that shuts down got %d requests after it had given one up", n-1)
	}
}

func TestTheHeaderWaitsForTheFirstTokenAndNotForLonger(t *testing.T) {
	header, goOn := make(chan struct{}), make(chan struct{})
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		eventStream(w)
		say(w, ": started\n\n")
		close(header)
		<-goOn
		say(w, token("a")+doneOnly)
	})
	h := newHouse(t, Options{Hold: time.Millisecond}, spec(address))
	r := h.post("/v1/completions", streamed)
	await(t, "the engine has begun its answer", header)
	if line, err := bufio.NewReader(r.Body).ReadString('\n'); err != nil || line != ": started\n" {
		t.Errorf("%q, %v", line, err)
	}
	close(goOn)
	h.outcomes(map[picker.Outcome]int64{picker.Completed: 1})
}

func TestAClientThatLeavesAnAnswerThatIsHeldBackBlamesNobody(t *testing.T) {
	begun, stopped := make(chan struct{}), make(chan struct{})
	address := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		eventStream(w)
		close(begun)
		<-r.Context().Done()
		say(w, doneOnly) // as vLLM ends what its client has left
		close(stopped)
	})
	h := newHouse(t, Options{}, spec(address))
	ctx, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/completions", strings.NewReader(streamed))
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if r, err := http.DefaultTransport.RoundTrip(request); err == nil {
			_ = r.Body.Close()
			t.Error("the header did not wait")
		}
	}()
	await(t, "the engine has begun", begun)
	leave()
	await(t, "the client has left", gone)
	await(t, "the engine has stopped", stopped)
	h.outcomes(map[picker.Outcome]int64{picker.ClientGone: 1})
	if n := h.picker.Stats()[0].Endpoints[0].Failures; n != 0 {
		t.Errorf("%d failures", n)
	}
}

// limited is an engine with --max-num-queued-reqs, as vLLM 0.32.0 answers: 503, or a stream with an error.
type limited struct {
	most             int64
	inside, refused  atomic.Int64
	served, finished atomic.Int64
	goOn             chan struct{}
}

func (l *limited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	sequences := int64(1)
	if strings.Contains(string(body), `"n":2`) {
		sequences = 2
	}
	defer l.inside.Add(-sequences)
	if l.inside.Add(sequences) > l.most {
		l.refused.Add(1)
		if strings.Contains(string(body), `"stream":true`) {
			saying(fullEvent)(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(503)
		_, _ = io.WriteString(w, fullBody)
		return
	}
	l.served.Add(1)
	<-l.goOn
	l.finished.Add(1)
	saying(token("a")+doneOnly)(w, r)
}

func TestRequestsWaitForEnginesWhoseQueuesAreFull(t *testing.T) {
	for name, tc := range map[string]struct {
		body   string
		places [2]int64 // of each engine
	}{
		"streams":         {streamed, [2]int64{3, 2}},
		"JSON":            {`{"model":"m","prompt":"x"}`, [2]int64{3, 2}},
		"several answers": {`{"model":"m","prompt":"x","n":2}`, [2]int64{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			engines := []*limited{{most: 3, goOn: make(chan struct{})}, {most: 2, goOn: make(chan struct{})}}
			s := spec(engine(t, engines[0].ServeHTTP), engine(t, engines[1].ServeHTTP))
			s.Policy.Admission.Queue = true
			s.Policy.Admission.WaitBudget = time.Hour
			s.Policy.Admission.Limits.Requests, s.Policy.Admission.Limits.Bytes = 1000, 1<<20
			s.Policy.Admission.Limits.TTL, s.Policy.Admission.Limits.Hold = time.Hour, time.Hour
			s.Policy.CircuitFailures = 1
			h := newHouse(t, Options{}, s)
			const requests = 30
			answers := make(chan string, requests)
			for range requests {
				go func() {
					r := h.post("/v1/completions", tc.body)
					answers <- fmt.Sprint(r.StatusCode, " ", read(t, r))
				}()
			}
			eventually(t, "the engines are full, and the rest waits", func() bool {
				return engines[0].served.Load() == tc.places[0] && engines[1].served.Load() == tc.places[1] &&
					h.picker.Stats()[0].Admission.Waiting == requests-int(tc.places[0]+tc.places[1])
			})
			close(engines[0].goOn)
			close(engines[1].goOn)
			for range requests {
				if got := await(t, "an answer", answers); got != "200 "+token("a")+doneOnly {
					t.Errorf("%s", got)
				}
			}
			h.outcomes(map[picker.Outcome]int64{picker.Completed: requests})
			for i, ep := range h.picker.Stats()[0].Endpoints {
				if ep.Failures != 0 || !ep.CircuitClosed || ep.Full != engines[i].refused.Load() {
					t.Errorf("engine %d: %d failures, circuit closed %v, %d refusals counted of %d", i, ep.Failures, ep.CircuitClosed, ep.Full, engines[i].refused.Load())
				}
			}
		})
	}
}

// TestRequestsOfManyAnswersStopNobodyElse: engines refuse requests for more answers than the limit of their queues, though they are
// idle. Those are answered at once, and teach no limit.
func TestRequestsOfManyAnswersStopNobodyElse(t *testing.T) {
	var heavy atomic.Int64
	serve := func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), `"n":9`) {
			heavy.Add(1)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(503)
			_, _ = io.WriteString(w, fullBody)
			return
		}
		saying(token("a")+doneOnly)(w, r)
	}
	s := spec(engine(t, serve), engine(t, serve))
	s.Policy.Admission.Queue = true
	s.Policy.Admission.WaitBudget = time.Hour
	s.Policy.Admission.Limits.Requests, s.Policy.Admission.Limits.Bytes = 1000, 1<<20
	s.Policy.Admission.Limits.TTL, s.Policy.Admission.Limits.Hold = time.Hour, time.Hour
	h := newHouse(t, Options{}, s)
	for range 20 {
		r := h.post("/v1/completions", `{"model":"m","prompt":"x","n":9}`)
		if got := read(t, r); r.StatusCode != 503 || r.Header.Get("Retry-After") != "1" {
			t.Fatalf("answer %d %q", r.StatusCode, got)
		}
		if r := h.post("/v1/completions", streamed); r.StatusCode != 200 || read(t, r) != token("a")+doneOnly {
			t.Fatalf("a request of one answer got %d", r.StatusCode)
		}
	}
	if n := heavy.Load(); n != 40 {
		t.Errorf("20 heavy requests were sent %d times, want once to each engine", n)
	}
	if w := h.picker.Stats()[0].Admission.Waited; w != 0 {
		t.Errorf("%d requests have waited", w)
	}
}

func TestRefusalsByFullQueuesWithoutAQueueOfOurs(t *testing.T) {
	for name, tc := range map[string]struct {
		body, want string
	}{
		"streams": {streamed, `"engines_full"`}, "JSON": {`{"model":"m","prompt":"x"}`, fullBody},
	} {
		t.Run(name, func(t *testing.T) {
			full := &limited{goOn: make(chan struct{})}
			h := newHouse(t, Options{}, spec(engine(t, full.ServeHTTP), engine(t, full.ServeHTTP)))
			r := h.post("/v1/completions", tc.body)
			if got := read(t, r); r.StatusCode != 503 || r.Header.Get("Retry-After") != "1" || !strings.Contains(got, tc.want) {
				t.Errorf("answer %d %q, Retry-After %q", r.StatusCode, got, r.Header.Get("Retry-After"))
			}
			h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
			if n := full.refused.Load(); n != 2 {
				t.Errorf("%d engines tried, want 2", n)
			}
		})
	}
}

func TestWhoWaitsTooLongForFullQueuesIsToldWhenToComeAgain(t *testing.T) {
	full := &limited{goOn: make(chan struct{})}
	s := spec(engine(t, full.ServeHTTP))
	s.Policy.Admission.Queue = true
	s.Policy.Admission.Limits.Requests, s.Policy.Admission.Limits.Bytes = 1000, 1<<20
	s.Policy.Admission.Limits.TTL = 50 * time.Millisecond
	h := newHouse(t, Options{}, s)
	r := h.post("/v1/completions", streamed)
	if got := read(t, r); r.StatusCode != 429 || r.Header.Get("Retry-After") == "" || !strings.Contains(got, "queue_timeout") {
		t.Errorf("answer %d %q", r.StatusCode, got)
	}
	h.outcomes(map[picker.Outcome]int64{picker.Failed: 1})
}
