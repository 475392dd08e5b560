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
	"github.com/kvasir-dev/kvasir/internal/openai"
)

const (
	// firstRead is the most that is allocated for a body before any of it has arrived.
	firstRead = 64 << 10
	// keepBody is the largest buffer that is kept for further requests.
	keepBody = 1 << 20
)

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// body is a request body in memory. It is shared by the handler and by the attempts that send it: a connection might
// continue to read after its attempt was given up. The buffer is reused when all have released it.
type body struct {
	bytes   []byte
	refs    atomic.Int32
	proxy   *Proxy
	account *budget.Account
}

func (b *body) release() {
	if b.refs.Add(-1) > 0 {
		return
	}
	b.account.Close()
	buf := b.bytes[:0]
	b.bytes = nil
	if cap(buf) > 0 && cap(buf) <= keepBody {
		buffers.Put(&buf)
	}
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
	case r.at == len(r.body.bytes):
		return 0, io.EOF
	}
	r.taken.Store(true)
	n := copy(p, r.body.bytes[r.at:])
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

// refusal is why a request is not picked for.
type refusal struct {
	reason, typ, code, message string
	status                     int
}

var (
	errTooLarge = &refusal{reason: RefusedTooLarge, status: http.StatusRequestEntityTooLarge,
		typ: "invalid_request_error", code: "request_too_large", message: "The request body is too large."}
	errEncoding = &refusal{reason: RefusedEncoding, status: http.StatusUnsupportedMediaType,
		typ: "invalid_request_error", code: "unsupported_encoding", message: "Compressed request bodies are not supported."}
	errSlowBody = &refusal{reason: RefusedSlowBody, status: http.StatusRequestTimeout,
		typ: "invalid_request_error", code: "request_timeout", message: "The request body did not arrive in time."}
	errBrokenBody = &refusal{reason: RefusedBrokenBody, status: http.StatusBadRequest,
		typ: "invalid_request_error", code: "invalid_request", message: "The request body could not be read to its end."}
	errMemory = &refusal{reason: RefusedMemory, status: http.StatusServiceUnavailable,
		typ: "service_unavailable", code: "overloaded", message: "Too many large requests are under way."}
	errOverload = &refusal{reason: RefusedOverload, status: http.StatusServiceUnavailable,
		typ: "service_unavailable", code: "overloaded", message: "The picker takes no large bodies of clients without a key at the moment."}
	errShed = &refusal{reason: RefusedShed, status: http.StatusServiceUnavailable,
		typ: "service_unavailable", code: "overloaded", message: "The request body came too slowly while there was no room for others."}
)

// readBody reads the request's body to its end, or returns why it is refused. The client must keep giving: at the minimum
// rate, over each stall time.
func (p *Proxy) readBody(out *client, r *http.Request) (*body, *refusal) {
	limit := p.picker.MaxRequestBody(p.options.DefaultMaxBody)
	if r.ContentLength > limit {
		return nil, errTooLarge
	}
	if encoded(r.Header) {
		return nil, errEncoding
	}
	b := &body{proxy: p}
	b.refs.Store(1)
	if r.Body != http.NoBody {
		b.account = p.budget.Open(budget.Bodies, out.owner(r), r.RemoteAddr, func() { out.readWithin(time.Nanosecond) })
		b.bytes = (*buffers.Get().(*[]byte))[:0]
		refused := b.fill(out, r, limit)
		if refused == nil && !b.account.Complete() || refused == errSlowBody && b.account.Shed() {
			refused = errShed
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
func (b *body) fill(out *client, r *http.Request, limit int64) *refusal {
	size := int(r.ContentLength) // -1 when it is not known
	if size < 0 || size > firstRead {
		size = firstRead
	}
	if !b.account.Take(int64(cap(b.bytes))) || !b.grow(size) {
		return errMemory
	}
	window, inWindow := time.Now(), 0 // since when inWindow bytes have arrived
	quota := int(float64(b.proxy.options.MinBodyRate) * out.stall.Seconds())
	for {
		if len(b.bytes) == cap(b.bytes) {
			more := 2 * cap(b.bytes)
			if r.ContentLength >= 0 {
				more = min(more, int(r.ContentLength))
			}
			// One byte over the limit reports that it is passed.
			if !b.grow(int(min(int64(more), limit)) + 1) {
				return errMemory
			}
		}
		n, err := r.Body.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		b.account.Received(n)
		if int64(len(b.bytes)) > limit {
			return errTooLarge
		}
		if err != nil {
			return b.readError(err)
		}
		if inWindow += n; inWindow >= quota {
			if now := time.Now(); now.Sub(window) > out.stall/8 {
				window, inWindow = now, 0
				out.readWithin(out.stall)
				if b.account.Shed() { // the deadline for this was removed
					return errShed
				}
			}
		}
	}
}

func (b *body) readError(err error) *refusal {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errSlowBody
	case errors.As(err, &tooLarge):
		return errTooLarge
	}
	return errBrokenBody
}

// salt sets the cache salt in a body that was parsed. It fails if there is no room for it.
func (b *body) salt(salt string) bool {
	keep, tail := openai.PutSalt(b.bytes, salt)
	return b.end(keep, tail)
}

// askUsage makes a body that was parsed ask for the usage of the stream. It fails if there is no room for that.
func (b *body) askUsage() bool {
	keep, tail := openai.PutStreamUsage(b.bytes)
	return b.end(keep, tail)
}

// askReport makes a body that was parsed ask the engine to announce what it finds in its cache, if there is room for that.
func (b *body) askReport() {
	b.end(openai.PutReport(b.bytes))
}

// end replaces what is behind the first keep bytes.
func (b *body) end(keep int, tail []byte) bool {
	if !b.grow(keep + len(tail)) {
		return false
	}
	b.bytes = append(b.bytes[:keep], tail...)
	return true
}

// grow makes room for size bytes in all, if the budget has it.
func (b *body) grow(size int) bool {
	before := cap(b.bytes)
	if size <= before {
		return true
	}
	if !b.account.Take(int64(size - before)) {
		return false
	}
	b.bytes = append(make([]byte, 0, size), b.bytes...)
	return true
}
