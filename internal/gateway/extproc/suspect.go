package extproc

import (
	"net/http"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/picker"
)

// The guard against requests that crash engines. The picker sees no connection end behind a gateway, so it infers from the
// answer that an engine aborted:
//
//   - A gateway answers by itself if the engine aborts before the header of an answer. Envoy says in the text whether it
//     had connected.
//   - A stream that ends in the middle of an answer is a client that left or an engine that aborted. It counts if the
//     endpoint fails afterwards, or does not listen when the request comes to be sent to a third one.
//
// A gateway that sends the request again, or a client that does, opens another stream. That one is refused once the
// engines of two pods have aborted. Gateways that show no answers are not covered.

// guard is what an exchange knows for that.
type guard struct {
	mark    uint64    // of the request among the picker's Suspects; 0 without one
	own     ownAnswer // whether the answer is the gateway's own, and what it says
	refused bool      // by an immediate response, for whatever reason
}

// suspect returns for how long a request is refused because engines have aborted on it, 0 for one that is not. A request whose body
// is not known is recognized by its id, which gateways keep when they send it again.
func (x *exchange) suspect(in *picker.Request) time.Duration {
	if x.silent { // it only watches
		return 0
	}
	s := x.server.picker.Suspects()
	method, path := x.head.get(":method"), x.head.get(":path")
	if method == "" {
		method = http.MethodPost
	}
	path, query, _ := strings.Cut(path[max(0, strings.LastIndex(path, "/v1/")):], "?")
	body := in.Body
	if len(body) == 0 {
		if body = []byte(x.head.get(picker.RequestIDHeader)); len(body) == 0 || !in.Hidden {
			return 0
		}
		x.mark = s.MarkID(method, path, body)
	} else {
		x.mark = s.Mark(method, path, query, body)
	}
	if !s.Any() {
		return 0
	}
	for _, ep := range s.Unsure(x.mark, x.server.options.Now()) {
		if dial(x.out.Context(), ep.Address) == refuses {
			s.Broke(x.mark, ep.ID.Pod, x.server.options.Now())
		} else {
			s.Spare(x.mark, ep.ID.Pod)
		}
	}
	return s.Refused(x.mark, x.server.options.Now())
}
