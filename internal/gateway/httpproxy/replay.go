package httpproxy

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

// replayPiece is how much of an answer from the response cache is written at once, in bytes: a client that takes less in the stall time
// is disconnected.
const replayPiece = 32 << 10

// replay sends an answer from the response cache. While it is sent it counts as the client's memory, because the cache can drop it
// meanwhile.
func (p *Proxy) replay(out *client, r *http.Request, hit *picker.CachedAnswer, start time.Time) {
	account := p.account(budget.Answers, out, r, nil)
	defer account.Close()
	if !account.Take(int64(len(hit.Body))) {
		p.refuse(out, request.NoMemory)
		return
	}
	out.span.Answered(hit.Pool)
	h := out.Header()
	h["Content-Type"] = nil // net/http would guess one
	if hit.ContentType != "" {
		h["Content-Type"] = []string{hit.ContentType}
	}
	h["X-Request-Id"] = []string{out.id}
	if !hit.Stream {
		h["Content-Length"] = []string{strconv.Itoa(len(hit.Body))}
	}
	out.put(picker.CacheHeader, "hit")
	if hit.Similarity > 0 {
		out.put(picker.SimilarityHeader, strconv.FormatFloat(math.Floor(hit.Similarity*1e4)/1e4, 'f', 4, 64))
	}
	out.put("age", strconv.Itoa(int(hit.Age/time.Second)))
	picker.EachRateHeader(hit.Rates, out.put)
	out.WriteHeader(http.StatusOK)
	gone := false
	for piece := range slices.Chunk(hit.Body, replayPiece) {
		if out.write(piece, hit.Stream) != nil {
			gone = true
			break
		}
	}
	out.usage.Answered(hit.PromptTokens, hit.GeneratedTokens, gone, p.options.Now().Sub(start))
	if gone {
		panic(http.ErrAbortHandler)
	}
}

// record begins to record an answer for the response cache, in place of one that the client has not got anything of.
func (e *exchange) record(response *http.Response) {
	recording := e.pick.Recording
	if !recording.Active() {
		return
	}
	recording.Reset()
	if !storable(response) {
		recording.Drop(respcache.Unfit)
	}
}

// storable reports whether an answer can be stored, as far as its header shows. Of other requests than this one, an answer depends on
// their key alone.
func storable(response *http.Response) bool {
	h := response.Header
	if response.StatusCode != http.StatusOK || encoded(h) || len(h["Set-Cookie"]) > 0 {
		return false
	}
	for _, list := range h["Cache-Control"] {
		for directive := range strings.SplitSeq(strings.ToLower(list), ",") {
			if name, _, _ := strings.Cut(strings.TrimSpace(directive), "="); name == "no-store" || name == "private" {
				return false
			}
		}
	}
	for _, list := range h["Vary"] {
		for name := range strings.SplitSeq(strings.ToLower(list), ",") {
			if name = strings.TrimSpace(name); name != "" && name != "origin" && name != "accept-encoding" {
				return false
			}
		}
	}
	return true
}

// store ends the recording of an answer that has passed to its end.
func (e *exchange) store(a *picker.Answer, response *http.Response, outcome picker.Outcome) {
	recording := e.pick.Recording
	switch {
	case !recording.Active():
	case outcome != picker.Completed:
		recording.Drop(respcache.Unfit)
	case !a.Whole():
		recording.Drop(respcache.Incomplete)
	default:
		prompt, generated := a.Counted()
		contentType := response.Header.Get("Content-Type")
		recording.Store(e.proxy.options.Now(), respcache.Answer{
			ContentType: contentType, Stream: picker.IsEventStream(contentType), PromptTokens: prompt, GeneratedTokens: generated,
		})
	}
}
