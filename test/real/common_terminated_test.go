// The file's name puts its tests behind the others of the shared engines, because they end them.

package real

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestEnginesThatDieAndComeBackFailNoRequest kills one of two engines under load and starts it again in the same pod. No
// request fails, and the index is the engines' again.
func TestEnginesThatDieAndComeBackFailNoRequest(t *testing.T) {
	engines := sharedEngines(t)
	p := startPicker(t, engines, pickerConfig{files: true})
	verdict(t, p.repeated(chat("before an engine died", say("user", text("before", 300)))))
	var err error
	answers := p.whileClientsSend(t, 4, func(client, i int) request {
		return chat("-", say("user", text(fmt.Sprint("dying", client, i%5), 200)))
	}, func() { err = p.comeBack(0, engines[0].kill) })
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if a.err != nil || a.status != http.StatusOK {
			verdict(t, fmt.Errorf("status %d, error %w: %.300s", a.status, a.err, a.body))
		}
	}
	verdict(t, p.holdsTheSame(engines))
	p.until("the engine's events are followed again", p.ready)
	verdict(t, p.repeated(chat("after an engine died", say("user", text("after", 300)))))
}

// TestEnginesThatShutDownLoseNoRequest sends SIGTERM to one of two engines under load, and nothing else says that it ends. Until
// its process is gone vLLM listens, is healthy, and has answers for new requests that are errors, aborted, or empty. Clients get
// whole answers all the same. Only a stream that has begun can end early, where the engine does not wait for running requests:
// then its client sees that.
//
// An engine that has not ended when its grace period is over is killed, as the kubelet does it. vLLM 0.32 without
// --shutdown-timeout never ends while a client waits: some of its requests get no answer any more.
func TestEnginesThatShutDownLoseNoRequest(t *testing.T) {
	engines := sharedEngines(t)
	p := startPicker(t, engines, pickerConfig{files: true})
	for _, c := range []struct {
		name   string
		engine int
		waits  bool // for running requests: it has --shutdown-timeout
		grace  time.Duration
		kinds  []int // of the clients' requests
	}{
		{"at once", 0, false, 10 * time.Second, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
		// It answers token ids with nothing and other requests with errors. After a few errors the picker leaves it alone.
		{"after running requests", 1, true, 25 * time.Second, []int{0, 5, 2, 3, 2, 3, 2, 3, 6, 7, 8, 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.waits && !atLeast("0.18") {
				t.Skipf("vLLM %s does not wait", run.release)
			}
			e := engines[c.engine]
			end := func() {
				if c.waits { // so that it does, for as long as it may
					long, leave := context.WithCancel(context.Background())
					defer leave()
					go post(long, e.url, completion("-", ids(7, 40)).with(object{"max_tokens": maxModelLen - 100, "ignore_eos": true}))
				}
				if err := within(patience, func() error { // it has begun on requests of its own
					if e.metric("vllm:num_requests_running") < 2 {
						return errors.New("the engine has no two requests")
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				if err := e.terminate(); err != nil {
					t.Error(err)
				}
				select {
				case <-e.exited:
				case <-time.After(c.grace):
					t.Logf("the engine has not ended within %v, and is killed", c.grace)
				}
			}
			var err error
			answers := p.whileClientsSend(t, len(c.kinds), func(client, i int) request {
				return ofEveryKind(c.kinds[client], fmt.Sprint(c.name, client, " ", i))
			}, func() {
				if end(); c.waits {
					e.stop()
					return
				}
				err = p.comeBack(c.engine, func() {})
			})
			if err != nil {
				t.Fatal(err)
			}
			cut := 0
			for _, a := range answers {
				fault := a.whole()
				if fault != nil && !c.waits && a.openlyCut() {
					cut++
					continue
				}
				verdict(t, fault)
			}
			if none := "the engine gave the request up"; c.waits && atLeast("0.32") && !strings.Contains(p.log.tail(1<<20), none) {
				t.Error("the engine has given no answers without content: the case shows nothing")
			}
			t.Logf("%d answers, %d streams cut; the picker saw %v failures of the engine", len(answers), cut,
				p.metric("kvasir_endpoint_failures_total", fmt.Sprintf("endpoint=\"pod-%d/", c.engine)))
		})
	}
}

// outputTokens of each answer to requests ofEveryKind.
const outputTokens = 24

// ofEveryKind is a request with text, token ids or messages to each API that the release has, by half of a number, and streamed if the
// number is even.
func ofEveryKind(number int, name string) request {
	list := []request{completion("text", text(name, 60)), completion("ids", ids(family(name), 80)), chat("chats", say("user", text(name, 60)))}
	for i, r := range list {
		list[i] = r.with(object{"max_tokens": outputTokens, "ignore_eos": true})
	}
	if atLeast("0.27") { // their answers are read from there on
		list = append(list,
			request{shape: "messages", path: "/v1/messages", body: object{"model": "m", "max_tokens": outputTokens, "messages": []object{say("user", text(name, 60))}}},
			request{shape: "responses", path: "/v1/responses", body: object{"model": "m", "max_output_tokens": outputTokens, "store": false, "input": text(name, 60)}})
	}
	r := list[number/2%len(list)]
	if number%2 == 0 {
		r.shape += ", streamed"
		r = r.with(object{"stream": true})
	}
	return r
}

// whole returns nil if an answer to a request ofEveryKind has all of its tokens. Messages and Responses have no field that keeps a model
// from ending before, so of them it is whole with an end that the engine has chosen.
func (a answer) whole() error {
	streamed := a.request.body["stream"] == true
	has := func(part string) bool { return strings.Contains(a.body, part) }
	var fine bool
	switch a.request.path {
	case "/v1/messages":
		fine = (has(`"stop_reason":"max_tokens"`) || has(`"stop_reason":"end_turn"`)) && (!streamed || has("event: message_stop"))
	case "/v1/responses":
		fine = has(`"output_text"`) && (has(`"status":"incomplete"`) || has(`"status":"completed"`)) && (!streamed || has("event: response.completed"))
	default:
		fine = has(`"finish_reason":"length"`) && (streamed || has(fmt.Sprintf(`"completion_tokens":%d`, outputTokens))) &&
			(!streamed || strings.HasSuffix(strings.TrimSpace(a.body), "data: [DONE]"))
	}
	if a.err != nil || a.status != http.StatusOK || !fine {
		return fmt.Errorf("%s: status %d, error %w, %d events, ends with %.400s", a.request.shape, a.status, a.err, a.events, a.body[max(0, len(a.body)-400):])
	}
	return nil
}

// openlyCut reports whether a stream that is not whole has begun, and says that it is not whole: by its connection, an
// error, or its reason to end.
func (a answer) openlyCut() bool {
	says := strings.Contains(a.body, `"finish_reason":"abort"`) || strings.Contains(a.body, `"error":`)
	switch a.request.path {
	case "/v1/messages": // an abort has no reason
		says = says || !strings.Contains(a.body, `"stop_reason":"`)
	case "/v1/responses":
		says = says || strings.Contains(a.body, `"status":"cancelled"`)
	}
	return a.request.body["stream"] == true && a.status == http.StatusOK && a.events > 0 && (a.err != nil || says)
}

// whileClientsSend lets clients send requests one after the other until a function returns, and returns the answers.
func (p *picker) whileClientsSend(t *testing.T, clients int, next func(client, i int) request, during func()) (answers []answer) {
	t.Helper()
	ended := make(chan struct{})
	var sending sync.WaitGroup
	var mu sync.Mutex
	for client := range clients {
		sending.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-ended:
					return
				default:
				}
				a := p.try(context.Background(), next(client, i))
				mu.Lock()
				answers = append(answers, a)
				mu.Unlock()
			}
		})
	}
	during()
	close(ended)
	sending.Wait()
	return answers
}

// comeBack lets an engine end and starts it again in the same pod.
func (p *picker) comeBack(i int, end func()) error {
	e := p.engines[i]
	end()
	e.stop()
	if err := e.run(); err != nil {
		return err
	}
	p.describe(i, "{ready: false, serving: false, terminating: false}") // as the kubelet's probe says
	err := e.untilServing()
	p.describe(i, "{ready: true, serving: true, terminating: false}")
	if err != nil {
		return err
	}
	return within(patience, func() error { // it looks every two seconds
		if n := p.metric("kvasir_endpoint_pickable"); n < float64(len(p.engines)) {
			return fmt.Errorf("the picker sends requests to %v of %d engines", n, len(p.engines))
		}
		return nil
	})
}
