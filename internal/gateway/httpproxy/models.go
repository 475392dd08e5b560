package httpproxy

import (
	"net/http"

	"github.com/kvasir-dev/kvasir/internal/gateway/request"
)

// models answers for the names that the client is allowed to use, over all pools: with the list, or with one of them. The
// engines' data was requested before, in the background.
func (p *Proxy) models(out *client, r *http.Request) {
	answer, unknown, err := request.Models(p.picker, headerOf(r), r.URL.Path, p.since)
	switch {
	case err != nil:
		p.refusePick(out, r, err)
	case answer != nil:
		out.answerJSON(http.StatusOK, answer)
	case !redirected(out, r):
		p.refusePick(out, r, p.picker.Unknown(headerOf(r), unknown))
	}
}
