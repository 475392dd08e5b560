package httpproxy

import (
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/gateway/request"
	"github.com/kvasir-dev/kvasir/internal/openai"
)

// firstRead is the most that is allocated for a body before any of it has arrived.
const firstRead = 64 << 10

// body is a request body in memory. It is shared by the handler and by the attempts that send it: a connection might
// continue to read after its attempt was given up. The buffer is reused when all have released it.
type body struct {
	request.Buffer
	refs    atomic.Int32
	proxy   *Proxy
	account *budget.Account
}

func (b *body) release() {
	if b.refs.Add(-1) > 0 {
		return
	}
	b.account.Close()
	b.Free()
}

// reader returns a reader over the body that holds on to it until it is closed. taken is set when any of it is read.
func (b *body) reader(taken *atomic.Bool) io.ReadCloser {
	b.refs.Add(1)
	return &bodyReader{body: b, taken: taken}
}

type bodyReader struct {
	mu   sync.Mutex
	body *body // nil when closed
	at   int

	taken *atomic.Bool
}

func (r *bodyReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.body == nil:
		return 0, errors.New("reading a closed body")
	case r.at == len(r.body.Bytes):
		return 0, io.EOF
	}
	r.taken.Store(true)
	n := copy(p, r.body.Bytes[r.at:])
	r.at += n
	return n, nil
}

// Close is idempotent.
func (r *bodyReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body != nil {
		r.body.release()
		r.body = nil
	}
	return nil
}

// readBody reads the request's body to its end, or returns why it is refused. The client must keep giving: at the minimum
// rate, over each stall time.
func (p *Proxy) readBody(out *client, r *http.Request) (*body, *request.Refusal) {
	limit := p.picker.MaxRequestBody(p.options.DefaultMaxBody)
	if r.ContentLength > limit {
		return nil, request.TooLarge
	}
	if encoded(r.Header) {
		return nil, request.Encoding
	}
	b := &body{proxy: p}
	b.refs.Store(1)
	if r.Body != http.NoBody {
		b.account = p.account(budget.Bodies, out, r, func() { out.readWithin(time.Nanosecond) })
		refused := b.fill(out, r, limit)
		if refused == nil && !b.account.Complete() || refused == request.SlowBody && b.account.Shed() {
			refused = request.Shed
		}
		if refused != nil {
			b.release()
			return nil, refused
		}
	}
	if out.unread {
		out.unread = false
		out.readWithin(0)
	}
	return b, nil
}

// encoded reports whether a body is compressed, or encoded otherwise: by any of the codings of any of the header's lines.
func encoded(h http.Header) bool {
	for _, list := range h["Content-Encoding"] {
		for coding := range strings.SplitSeq(list, ",") {
			if coding = textproto.TrimString(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return true
			}
		}
	}
	return false
}

// fill reads at most limit bytes.
func (b *body) fill(out *client, r *http.Request, limit int64) *request.Refusal {
	size := int(r.ContentLength) // -1 when it is not known
	if size < 0 || size > firstRead {
		size = firstRead
	}
	if !b.Fill(b.account.Take, size) {
		return request.Memory
	}
	window, inWindow := time.Now(), 0 // since when inWindow bytes have arrived
	quota := int(float64(b.proxy.options.MinBodyRate) * out.stall.Seconds())
	for {
		if len(b.Bytes) == cap(b.Bytes) {
			more := 2 * cap(b.Bytes)
			if r.ContentLength >= 0 {
				more = min(more, int(r.ContentLength))
			}
			// One byte over the limit reports that it is passed.
			if !b.Fill(b.account.Take, int(min(int64(more), limit))+1) {
				return request.Memory
			}
		}
		n, err := r.Body.Read(b.Bytes[len(b.Bytes):cap(b.Bytes)])
		b.Bytes = b.Bytes[:len(b.Bytes)+n]
		b.account.Received(n)
		if int64(len(b.Bytes)) > limit {
			return request.TooLarge
		}
		if err != nil {
			return b.readError(err)
		}
		if inWindow += n; inWindow >= quota {
			if now := time.Now(); now.Sub(window) > out.stall/8 {
				window, inWindow = now, 0
				out.readWithin(out.stall)
				if b.account.Shed() { // the deadline for this was removed
					return request.Shed
				}
			}
		}
	}
}

func (b *body) readError(err error) *request.Refusal {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return request.SlowBody
	case errors.As(err, &tooLarge):
		return request.TooLarge
	}
	return request.BrokenBody
}

// askUsage makes a body that was parsed ask for the usage of the stream. It fails if there is no room for that.
func (b *body) askUsage() bool {
	keep, tail := openai.PutStreamUsage(b.Bytes)
	return b.End(b.account.Take, keep, tail)
}

// askReport makes a body that was parsed ask the engine to announce what it finds in its cache, if there is room for that.
func (b *body) askReport() {
	keep, tail := openai.PutReport(b.Bytes)
	b.End(b.account.Take, keep, tail)
}
