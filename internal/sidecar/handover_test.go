package sidecar

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/relay"
)

func reportOf(t *testing.T, r reply) relay.Report {
	t.Helper()
	values := r.header.Values(relay.ReportHeader)
	if len(values) != 1 {
		t.Fatalf("reports %q beside status %d, error %v", values, r.status, r.err)
	}
	report, ok := relay.ReadReport(values[0])
	if !ok {
		t.Fatalf("report %q", values[0])
	}
	return report
}

// TestBothLegsOfAHandoff: the first engine gets the prompt for one token, the second the request with the first one's parameters, untouched.
func TestBothLegsOfAHandoff(t *testing.T) {
	for _, body := range []string{streamed, whole} {
		h := newHouse(t, nil, nil)
		r := h.ask(body, relay.TicketHeader, h.ticket(), "X-Request-Id", "id-7", "Accept-Encoding", "gzip")
		if body == streamed && r.body != wholeStream || body == whole && !strings.Contains(r.body, `"text":"ab"`) || r.status != 200 {
			t.Fatalf("%+v", r)
		}
		first, second := h.prefill.received(), h.decode.received()
		if len(first) != 1 || len(second) != 1 {
			t.Fatalf("%d first legs, %d second ones", len(first), len(second))
		}
		for _, leg := range []got{first[0], second[0]} {
			if leg.header.Get("X-Request-Id") != "id-7" || leg.header.Get(relay.TicketHeader) != "" || leg.uri != "/v1/completions" {
				t.Errorf("a leg to %s has the header %v", leg.uri, leg.header)
			}
		}
		if f := first[0]; f.field("stream") != "false" || f.field("max_tokens") != "1" || f.field("min_tokens") != "" ||
			!strings.Contains(f.field("kv_transfer_params"), `"do_remote_decode":true`) || f.header.Get("Accept-Encoding") != "identity" {
			t.Errorf("first leg: %+v", f)
		}
		if s := second[0]; s.field("kv_transfer_params") != parameters || s.field("max_tokens") != "3" ||
			s.field("stream") == "" == (body == streamed) || body == streamed && (s.field("min_tokens") != "2" || s.field("seed") != "9007199254740993") ||
			s.header.Get("Accept-Encoding") != "gzip" {
			t.Errorf("second leg: %+v", s)
		}
		report := reportOf(t, r)
		if report.Since <= 0 || report.Since > patience {
			t.Errorf("the second leg was sent %v ago", report.Since)
		}
		if report.Since = 0; report != (relay.Report{Outcome: relay.HandedOver, Prompt: 40, Cached: 16}) {
			t.Errorf("report %+v", report)
		}
		h.rests()
	}
}

// answers writes an answer.
func answers(status int, kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func breaks(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// onlyHandedOver answers requests with parameters, and others as vLLM does.
func onlyHandedOver(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"do_remote_prefill":true`) {
			f(w, r)
			return
		}
		asVLLM(w, body)
	}
}

// TestFailedLegsCostTimeAndNoRequest: whatever happens to a leg before the answer begins, the client gets the entire answer, and the picker
// learns what it was.
func TestFailedLegsCostTimeAndNoRequest(t *testing.T) {
	failed := func(cause relay.Cause) relay.Report {
		return relay.Report{Outcome: relay.PrefillFailed, Cause: cause, Prompt: -1, Cached: -1}
	}
	decodeFailed := relay.Report{Outcome: relay.DecodeFailed, Prompt: 40, Cached: 16}
	const json, events = "application/json", "text/event-stream"
	for name, tc := range map[string]struct {
		prefill, decode http.HandlerFunc
		dead            bool // the engine that prefills
		within          time.Duration
		want            relay.Report
		decodes         int // requests to the engine that decodes
	}{
		"the first engine is dead": {dead: true, want: failed(relay.CauseConnect), decodes: 1},
		"it aborts":                {prefill: breaks, want: failed(relay.CauseBroken), decodes: 1},
		"it aborts in its answer": {prefill: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "99")
			_, _ = io.WriteString(w, `{"kv`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, want: failed(relay.CauseBroken), decodes: 1},
		"it is late":               {prefill: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, within: 50 * time.Millisecond, want: failed(relay.CauseLate), decodes: 1},
		"it answers with an error": {prefill: answers(500, json, `{"error":{"message":"x"}}`), want: failed(relay.CauseError), decodes: 1},
		"it is starting":           {prefill: answers(503, "text/plain", "starting"), want: failed(relay.CauseError), decodes: 1},
		"its queue is full":        {prefill: answers(429, json, `{}`), want: failed(relay.CauseFull), decodes: 1},
		"it refuses the request":   {prefill: answers(400, json, `{"error":{"message":"x"}}`), want: failed(relay.CauseRequest), decodes: 1},
		"it redirects": {prefill: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}, want: failed(relay.CauseRequest), decodes: 1},
		"it has no connector":                {prefill: answers(200, json, `{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":4}}`), want: relay.Report{Outcome: relay.NoParameters, Owed: true, Prompt: 4, Cached: -1}, decodes: 1},
		"it has ended at a stop token":       {prefill: answers(200, json, `{"choices":[{"finish_reason":"stop"}],"kv_transfer_params":null}`), want: relay.Report{Outcome: relay.NoParameters, Prompt: -1, Cached: -1}, decodes: 1},
		"its answer is not JSON":             {prefill: answers(200, json, "yes"), want: relay.Report{Outcome: relay.NoParameters, Prompt: -1, Cached: -1}, decodes: 1},
		"its answer is huge":                 {prefill: answers(200, json, `{"x":"`+strings.Repeat("y", relay.MaxPrefillAnswer)+`"}`), want: relay.Report{Outcome: relay.NoMemory, Prompt: -1, Cached: -1}, decodes: 1},
		"it gives up":                        {prefill: answers(200, json, `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`), want: failed(relay.CauseError), decodes: 1},
		"the second engine cannot load":      {decode: onlyHandedOver(answers(500, json, `{"error":{"message":"x"}}`)), want: decodeFailed, decodes: 2},
		"it does not know the parameters":    {decode: onlyHandedOver(answers(400, json, `{"error":{"message":"x"}}`)), want: decodeFailed, decodes: 2},
		"it reports that in its stream":      {decode: onlyHandedOver(answers(200, events, "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\ndata: [DONE]\n\n")), want: decodeFailed, decodes: 2},
		"it ends its stream without a token": {decode: onlyHandedOver(answers(200, events, "data: [DONE]\n\n")), want: decodeFailed, decodes: 2},
		"it aborts before its answer":        {decode: onlyHandedOver(breaks), want: decodeFailed, decodes: 2},
		"it aborts before the first token": {decode: onlyHandedOver(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", events)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}), want: decodeFailed, decodes: 2},
	} {
		for _, body := range []string{streamed, whole} {
			t.Run(name, func(t *testing.T) {
				h := newHouse(t, nil, nil)
				if tc.prefill != nil {
					h.prefill.does(tc.prefill)
				}
				if tc.decode != nil {
					h.decode.does(tc.decode)
				}
				if tc.dead {
					h.prefill.http.Close()
				}
				ticket := (&relay.Ticket{Address: h.prefill.address(), Pods: []string{relay.TagOf(podUID)}, Within: tc.within, ID: ids.Add(1)}).
					Sign(time.Now(), h.seed)
				r := h.ask(body, relay.TicketHeader, ticket)
				if r.status != 200 || r.err != nil || body == streamed && r.body != wholeStream || body == whole && !strings.Contains(r.body, `"text":"ab"`) {
					t.Fatalf("%+v", r)
				}
				if got := reportOf(t, r); got != tc.want {
					t.Errorf("report %+v, want %+v", got, tc.want)
				}
				all := h.decode.received()
				if len(all) != tc.decodes || all[len(all)-1].body != body {
					t.Errorf("the engine of the pod gets %d requests, the last is %+v", len(all), all[len(all)-1])
				}
				if n := h.server.Stats().Handoffs[tc.want.Outcome]; n != 1 {
					t.Errorf("counted: %v", h.server.Stats().Handoffs)
				}
				h.rests()
			})
		}
	}
}

// TestAFullQueuePasses: what the engine of the pod says of its queue is for the gateway, also after a prefill.
func TestAFullQueuePasses(t *testing.T) {
	h := newHouse(t, nil, nil)
	h.decode.does(answers(429, "application/json", `{"error":{"message":"full"}}`))
	r := h.ask(streamed, relay.TicketHeader, h.ticket())
	if r.status != 429 || r.body != `{"error":{"message":"full"}}` || len(h.decode.received()) != 1 {
		t.Errorf("%+v after %d requests", r, len(h.decode.received()))
	}
	h.rests()
}

// TestADeadEngineLooksDead: what a gateway does next is its own rule, so it sees a broken connection as it would without the sidecar.
func TestADeadEngineLooksDead(t *testing.T) {
	for name, act := range map[string]func(h *house){
		"refuses connections":     func(h *house) { h.decode.http.Close() },
		"aborts":                  func(h *house) { h.decode.does(breaks) },
		"aborts after some bytes": func(h *house) { h.decode.does(cutStream) },
	} {
		for _, handed := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				h := newHouse(t, nil, nil)
				act(h)
				var header []string
				if handed {
					header = []string{relay.TicketHeader, h.ticket()}
				}
				if r := h.ask(streamed, header...); r.err == nil {
					t.Errorf("%+v", r)
				} else if name == "aborts after some bytes" && !strings.HasPrefix(r.body, "data: {") {
					t.Errorf("what the engine has sent does not arrive: %+v", r)
				}
				h.rests()
				if n := h.server.Stats().Broken; n != 1 {
					t.Errorf("%d broken", n)
				}
			})
		}
	}
}

func cutStream(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n")
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// TestClientsThatLeaveEndTheirLegs, the first and the second, before and after the first byte.
func TestClientsThatLeaveEndTheirLegs(t *testing.T) {
	for name, at := range map[string]func(h *house) *engine{
		"in the prefill": func(h *house) *engine { return h.prefill },
		"in the answer":  func(h *house) *engine { return h.decode },
	} {
		for _, begun := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				h := newHouse(t, nil, nil)
				arrived, left := make(chan struct{}), make(chan struct{})
				at(h).does(func(w http.ResponseWriter, r *http.Request) {
					if begun {
						w.Header().Set("Content-Type", "text/event-stream")
						_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n")
						_ = http.NewResponseController(w).Flush()
					}
					close(arrived)
					<-r.Context().Done()
					close(left)
				})
				ctx, leave := context.WithCancel(t.Context())
				over := make(chan struct{})
				go func() { defer close(over); h.do(h.request(ctx, streamed, relay.TicketHeader, h.ticket())) }()
				await(t, arrived)
				leave()
				await(t, left)
				await(t, over)
				h.rests()
				if n := h.server.Stats().Broken; n != 0 {
					t.Errorf("%d count as broken by the engine", n)
				}
				if name == "in the prefill" && len(h.decode.received()) > 0 {
					t.Error("a request of a client that has left reaches the engine that decodes")
				}
			})
		}
	}
}

func await(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal("it does not happen")
	}
}

// TestOnlyPickersHaveRequestsHandedOver: nothing that a client can send makes the sidecar ask an address, or changes what the engine gets.
func TestOnlyPickersHaveRequestsHandedOver(t *testing.T) {
	h := newHouse(t, nil, nil)
	other := seedOf(t, "b")
	now := time.Now()
	victim := h.prefill.address()
	good := h.ticket()
	elsewhere := relay.Ticket{Address: victim, Pods: []string{relay.TagOf("other")}, ID: ids.Add(1)}
	for name, tickets := range map[string][]string{
		"an address":                     {victim},
		"a URL":                          {"http://" + victim},
		"of another pool":                {sign(victim, other, now)},
		"without a key":                  {sign(victim, kvblock.Seed{}, now)},
		"of yesterday":                   {sign(victim, h.seed, now.Add(-24*time.Hour))},
		"of tomorrow":                    {sign(victim, h.seed, now.Add(24*time.Hour))},
		"two good ones":                  {good, good},
		"one of ours and one of theirs":  {good, sign("127.0.0.1:1", other, now)},
		"one of theirs and one of ours":  {sign("127.0.0.1:1", other, now), good},
		"an empty one and one of ours":   {"", good},
		"joined":                         {good + ", " + good},
		"another address in one of ours": {strings.Replace(good, victim, "127.0.0.1:1", 1)},
		"empty":                          {""},
		"long":                           {strings.Repeat("9", 32<<10)},
		"the sidecar itself":             {sign(h.address, h.seed, now)},
		"for another pod":                {elsewhere.Sign(now, h.seed)},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(h.decode.received())
			r := h.request(t.Context(), streamed)
			r.Header[http.CanonicalHeaderKey(relay.TicketHeader)] = tickets
			answer := h.do(r)
			report := reportOf(t, answer)
			if answer.status != 200 || answer.body != wholeStream || report.Outcome != relay.Refused || report.Cause != relay.CauseTicket {
				t.Errorf("%+v", answer)
			}
			all := h.decode.received()
			if len(all) != before+1 || all[before].body != streamed || all[before].header.Get(relay.TicketHeader) != "" {
				t.Errorf("the engine gets %+v", all[before:])
			}
		})
	}
	for name, r := range map[string]*http.Request{
		"another route":  h.request(t.Context(), `{"model":"m","input":"x"}`, relay.TicketHeader, good),
		"not JSON":       h.request(t.Context(), `{"model":`, relay.TicketHeader, good),
		"a coded body":   h.request(t.Context(), streamed, relay.TicketHeader, good, "Content-Encoding", "gzip"),
		"another method": h.request(t.Context(), streamed, relay.TicketHeader, good),
	} {
		switch name {
		case "another route":
			r.URL.Path = "/v1/embeddings"
		case "another method":
			r.Method = http.MethodPut
		}
		r.Header.Set(relay.TicketHeader, h.ticket())
		answer := h.do(r)
		if report := reportOf(t, answer); answer.status != 200 || report.Outcome != relay.Refused || report.Cause != relay.CauseRequest {
			t.Errorf("%s: %+v", name, answer)
		}
	}
	if n := len(h.prefill.received()); n != 0 || h.prefill.conns.Load() != 0 {
		t.Errorf("%d requests, %d connections to the address that clients have named", n, h.prefill.conns.Load())
	}
	h.rests()
}

// TestNoClientSetsTheReport: what a client or the engine sends under its name does not reach the picker.
func TestNoClientSetsTheReport(t *testing.T) {
	h := newHouse(t, nil, nil)
	h.decode.does(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(relay.ReportHeader, "handed_over")
		_, _ = io.WriteString(w, "{}")
	})
	if r := h.ask(whole); r.status != 200 || r.header.Get(relay.ReportHeader) != "" {
		t.Errorf("%+v", r)
	}
	if r := h.ask(whole, relay.TicketHeader, "x"); reportOf(t, r).Outcome != relay.Refused {
		t.Errorf("%+v", r)
	}
}

// TestLongAnswersAreHeldWithinTheMemory: an answer that shows late what it is, or for which there is no room, passes as it is.
func TestLongAnswersAreHeldWithinTheMemory(t *testing.T) {
	long := `{"id":"` + strings.Repeat("x", 3<<20) + `","choices":[{"index":0,"text":"ab","finish_reason":"length"}]}`
	comments := strings.Repeat(": ping\n\n", 40<<10) + wholeStream
	for name, tc := range map[string]struct{ kind, answer string }{
		"JSON":     {"application/json", long},
		"a stream": {"text/event-stream", comments},
	} {
		for _, memory := range []int64{64 << 20, 0x118000} { // the second has room for a request, and little more
			t.Run(name, func(t *testing.T) {
				h := newHouse(t, func(o *Options) { o.Memory = memory }, nil)
				h.decode.does(answers(200, tc.kind, tc.answer))
				r := h.ask(whole, relay.TicketHeader, h.ticket())
				if r.status != 200 || r.err != nil || r.body != tc.answer || reportOf(t, r).Outcome != relay.HandedOver {
					t.Errorf("status %d, %d bytes of %d, %v", r.status, len(r.body), len(tc.answer), r.header)
				}
				h.rests()
			})
		}
	}
}

// TestRunningStreamsLeaveRoomForHandoffs: what the first leg needs is given back when the answer begins.
func TestRunningStreamsLeaveRoomForHandoffs(t *testing.T) {
	const streams = 20
	h := newHouse(t, func(o *Options) { o.Memory = 4 << 20 }, nil)
	end := make(chan struct{})
	h.decode.does(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-end
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	var all []*http.Response
	for range streams {
		answer, err := h.client.Do(h.request(t.Context(), streamed, relay.TicketHeader, h.ticket()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, answer)
	}
	if got := h.server.Stats().Handoffs; got[relay.HandedOver] != streams {
		t.Errorf("hand-offs beside running streams: %v", got)
	}
	close(end)
	for _, answer := range all {
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
	h.rests()
}

// TestATicketIsTakenOnce: one that was seen on its way, and is sent with another prompt, has nothing prefilled. Its request, that a gateway
// sends again, is served.
func TestATicketIsTakenOnce(t *testing.T) {
	h := newHouse(t, nil, nil)
	ticket := h.ticket()
	if report := reportOf(t, h.ask(streamed, relay.TicketHeader, ticket)); report.Outcome != relay.HandedOver {
		t.Fatalf("%+v", report)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			r := h.ask(streamed, relay.TicketHeader, ticket)
			if report := reportOf(t, r); r.status != 200 || r.body != wholeStream || report.Outcome != relay.Refused || report.Cause != relay.CauseTicket {
				t.Errorf("%+v", r)
			}
		})
	}
	all.Wait()
	if n := len(h.prefill.received()); n != 1 {
		t.Errorf("%d prompts are prefilled with one ticket", n)
	}
	h.rests()
}

// TestTicketsAreRememberedWhileTheyAreGood, and no more of them than there is room for.
func TestTicketsAreRememberedWhileTheyAreGood(t *testing.T) {
	var s spent
	now := time.Unix(1_800_000_000, 0)
	for i := range uint64(200) {
		if !s.take(i, now) || s.take(i, now) || i > 0 && s.take(i-1, now) {
			t.Fatalf("ticket %d", i)
		}
		for j := range i {
			if age := time.Duration(i-j) * relay.Kept / 20; age <= relay.Kept && s.take(j, now) {
				t.Fatalf("ticket %d is taken again after %v", j, age)
			}
		}
		now = now.Add(relay.Kept / 20)
		if n := len(s.present) + len(s.former); n > 41 {
			t.Fatalf("%d tickets are remembered", n)
		}
	}
	now = now.Add(time.Hour)
	for i := range uint64(maxSpent) {
		if !s.take(i, now) {
			t.Fatalf("ticket %d of many is not taken", i)
		}
	}
	if s.take(maxSpent, now) || s.take(0, now) {
		t.Error("a ticket is taken that cannot be remembered")
	}
	if now = now.Add(relay.Kept); !s.take(maxSpent, now) {
		t.Error("none is taken later")
	}
}
