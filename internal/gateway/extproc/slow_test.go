package extproc

import (
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
)

// TestASlowBodyBehindAGatewayIsGivenUp: one that trickles is refused as by the proxy, and what was held of it is given back.
func TestASlowBodyBehindAGatewayIsGivenUp(t *testing.T) {
	h := newHouse(t, Options{}, ServeOptions{RequestIdle: time.Second}, spec(engine(t, nil)))
	s := h.script()
	s.send(requestHead(false, post...), requestPiece(`{"model":"m","prompt":"`+string(make([]byte, 200<<10)), false))
	done := make(chan bool)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				_ = s.stream.Send(requestPiece("x", false)) // until the picker gives up
			}
		}
	}()
	answer := s.receive().GetImmediateResponse()
	close(done)
	if code := answer.GetStatus().GetCode(); code != 408 {
		t.Errorf("status %d, want 408", code)
	}
	h.seen.mu.Lock()
	defer h.seen.mu.Unlock()
	if n := h.seen.refused[request.RefusedSlowBody]; n != 1 {
		t.Errorf("%v, want one slow body", h.seen.refused)
	}
	if n := h.server.Buffered(); n > 100<<10 {
		t.Errorf("%d bytes are held", n)
	}
}
