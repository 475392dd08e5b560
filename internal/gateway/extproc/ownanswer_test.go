package extproc

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

const overflowText = "upstream connect error or disconnect/reset before headers. reset reason: overflow"

// An answer that a gateway gives in place of an engine counts against the engine only if the gateway has asked it.
func TestAnswersOfAGatewayCountAsWhatItSays(t *testing.T) {
	const connecting = "upstream connect error or disconnect/reset before headers. retried and the latest reset reason: " +
		"remote connection failure, transport failure reason: delayed connect error: Connection refused"
	plainText := []string{":status", "503", "content-type", "text/plain"}
	overloaded := append([]string{"x-envoy-overloaded", "true"}, plainText...)
	for name, tc := range map[string]struct {
		head                 []string
		text                 string
		failures, unfollowed int64
		bodyless             bool
	}{
		"a limit of the gateway":                    {overloaded, overflowText, 0, 0, false},
		"a limit, by the text alone":                {plainText, overflowText, 0, 0, false},
		"a limit, by the header alone":              {overloaded, "", 0, 0, false},
		"a limit, in a format of the user's":        {append([]string{"content-type", "application/json"}, overloaded[:4]...), `{"m":"overflow"}`, 0, 0, false},
		"a limit, and bodies are not shown":         {overloaded, "", 0, 0, true},
		"no endpoint that it knows":                 {plainText, "no healthy upstream", 0, 1, false},
		"no connection":                             {plainText, connecting, 1, 0, false},
		"no connection in time":                     {plainText, "upstream connect error or disconnect/reset before headers. reset reason: connection timeout", 1, 0, false},
		"an engine that aborted":                    {plainText, "upstream connect error or disconnect/reset before headers. reset reason: connection termination", 1, 0, false},
		"no reason":                                 {plainText, "503 Service Unavailable", 1, 0, false},
		"no text":                                   {plainText, "", 1, 0, false},
		"a failure, and bodies are not shown":       {plainText, "", 1, 0, true},
		"an engine that says so":                    {[]string{":status", "503", "content-type", "application/json"}, `{"error":{"message":"overflow"}}`, 1, 0, false},
		"an engine's answer, with the text":         {append([]string{"x-envoy-upstream-service-time", "3"}, plainText...), overflowText, 1, 0, false},
		"an engine's answer, with the header":       {append([]string{"x-envoy-upstream-service-time", "3"}, overloaded...), overflowText, 1, 0, false},
		"an error of an engine, with no body shown": {append([]string{"x-envoy-upstream-service-time", "3"}, overloaded...), "", 1, 0, true},
	} {
		for _, complete := range []bool{true, false} { // or the stream ends
			t.Run(name, func(t *testing.T) {
				h := newHouse(t, Options{}, ServeOptions{}, spec("127.0.0.1:1"))
				var s *script
				if tc.bodyless {
					s = h.bodyless()
				} else {
					s = h.script()
					s.routed(completion)
				}
				s.send(responseHead(complete && tc.text == "" && !tc.bodyless, tc.head...))
				s.receive()
				if tc.text != "" {
					s.send(responsePiece(tc.text, complete))
					s.receive()
				}
				s.cancel()
				eventually(t, "the stream has ended", func() bool { return h.server.Streams() == 0 })
				stats := h.picker.Stats()[0]
				var gateway picker.GatewayStats
				if len(stats.Gateways) > 0 {
					gateway = stats.Gateways[0]
				}
				if n := stats.Endpoints[0].Failures; n != tc.failures || gateway.Unfollowed != tc.unfollowed {
					t.Errorf("complete %v: %d failures, %+v, want %d, %d not followed", complete, n, gateway, tc.failures, tc.unfollowed)
				}
				if stats.Outcomes[picker.Completed] != 0 || stats.Endpoints[0].Load.InFlight != 0 {
					t.Errorf("complete %v: outcomes %v, %d in flight", complete, stats.Outcomes, stats.Endpoints[0].Load.InFlight)
				}
			})
		}
	}
}

// A burst that meets a gateway's limits must not close the pool, and endpoints that gateways cannot connect to get no more
// requests, however many they are.
func TestWhatGatewaysSayOpensCircuits(t *testing.T) {
	const a, b, c = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
	for name, tc := range map[string]struct {
		text   string
		toDead int // of 12 requests, once the two first endpoints have failed often enough
	}{
		"limits of the gateway": {overflowText, 8},
		"two dead endpoints":    {"upstream connect error or disconnect/reset before headers. reset reason: remote connection failure", 0},
	} {
		t.Run(name, func(t *testing.T) {
			pool := spec(a, b, c)
			pool.Policy.CircuitFailures, pool.Policy.CircuitOpen = 3, 1<<40
			h := newHouse(t, Options{}, ServeOptions{}, pool)
			round := func(n int) (toDead int) {
				for range n {
					s := h.script()
					if s.routed(completion) == c {
						s.send(responseHead(true, ":status", "200"))
						s.receive()
					} else {
						toDead++
						s.send(responseHead(false, ":status", "503", "content-type", "text/plain"), responsePiece(tc.text, true))
						s.receive()
						s.receive()
					}
					s.cancel()
					h.idle()
				}
				return toDead
			}
			round(12)
			if n := round(12); n != tc.toDead {
				t.Errorf("%d of 12 requests go to the two endpoints, want %d", n, tc.toDead)
			}
		})
	}
}
