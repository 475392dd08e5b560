// Package callout calls services that users name in policies, over HTTP, and leaves those alone that do not answer.
package callout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	neturl "net/url"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/hosts"
)

const (
	// maxAnswer bounds the answer of a service, in bytes.
	maxAnswer = 64 << 10
	// maxCalls is how many calls of one service are under way at most, in one picker.
	maxCalls = 256
	// dialTimeout bounds the opening of a connection, and its TLS handshake.
	dialTimeout = 5 * time.Second
)

// Fault says what is wrong with the URL of a service; empty for nothing.
func Fault(url string) string {
	u, err := neturl.Parse(url)
	switch {
	case err != nil:
		return "not a URL"
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Fragment != "":
		return "want http://HOST[:PORT][/PATH], or https"
	case u.User != nil:
		return "the URL must have no user or password: it can be read in the policy"
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && hosts.Forbidden(ip) {
		return "a link-local address, or one of a metadata service, is not called"
	}
	return ""
}

// Services calls services, and remembers which of them do not answer. It is safe for concurrent use.
type Services struct {
	client http.Client
	now    func() time.Time
	log    logr.Logger

	mu    sync.Mutex
	known map[string]*service // guarded by mu; by URL
}

// service is what is known of one.
type service struct {
	calls   int // under way
	breaker Breaker
}

// NewServices returns Services that know of none yet.
func NewServices(now func() time.Time, log logr.Logger) *Services {
	dialer := net.Dialer{Timeout: dialTimeout, Control: hosts.Control}
	return &Services{now: now, log: log, known: map[string]*service{}, client: http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, DisableCompression: true, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64, MaxConnsPerHost: maxCalls,
			IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 16 << 10, TLSHandshakeTimeout: dialTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes connections that no call uses.
func (s *Services) Close() { s.client.CloseIdleConnections() }

// Keep forgets services that are at none of the URLs.
func (s *Services) Keep(urls map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for url, one := range s.known {
		if !urls[url] && one.calls == 0 {
			delete(s.known, url)
		}
	}
}

var errPaused = fmt.Errorf("the service has failed %d times in a row, and is not called for %v", EnoughFailures, Pause)

// busyError is why a service is not called: it has so many calls under way.
type busyError int

func (e busyError) Error() string {
	return fmt.Sprintf("the service has %d calls under way, which is the limit", int(e))
}

// Call sends a body in JSON to the service at a URL, and returns the member result of its answer; nil if there is none.
func (s *Services) Call(ctx context.Context, url string, timeout time.Duration, body []byte) ([]byte, error) {
	text, err := s.call(ctx, &question{url: url, timeout: timeout, body: body, most: maxAnswer, calls: maxCalls})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, errors.New("the service's answer is not a JSON object")
	}
	return answer.Result, nil
}

// question is a call.
type question struct {
	url, key string
	timeout  time.Duration
	body     []byte
	// most bytes of the answer, and calls of the service under way.
	most, calls int
}

// call sends a question, and returns the whole answer, of status 200.
func (s *Services) call(ctx context.Context, q *question) ([]byte, error) {
	if err := s.begin(q); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	text, err := s.post(limited, q)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("the service has not answered within %v", q.timeout)
	}
	s.end(q.url, err, ctx.Err() != nil)
	return text, err
}

// begin counts a call, unless the service is not to be called now.
func (s *Services) begin(q *question) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.known[q.url]
	if one == nil {
		one = &service{}
		s.known[q.url] = one
	}
	if one.calls >= q.calls {
		return busyError(q.calls)
	}
	if !one.breaker.Allow(s.now()) {
		return errPaused
	}
	one.calls++
	return nil
}

// answerError is why an answer cannot be used. The service is there all the same: a client whose request it does not understand must not
// keep others from it.
type answerError string

func (e answerError) Error() string { return string(e) }

// end takes a call off, and remembers what became of it; nothing, if its client has gone.
func (s *Services) end(url string, err error, gone bool) {
	var answered answerError
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.known[url]
	one.calls--
	switch {
	case gone:
	case err == nil, errors.As(err, &answered):
		if one.breaker.Succeed() {
			s.log.Info("Service of a policy answers again", "url", url)
		}
	case one.breaker.Fail(s.now()):
		s.log.Error(err, "Service of a policy has failed repeatedly", "url", url, "failures", EnoughFailures)
	}
}

// post sends a request, and returns the answer.
func (s *Services) post(ctx context.Context, q *question) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.url, bytes.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "kvasir-picker")
	if q.key != "" {
		req.Header.Set("Authorization", "Bearer "+q.key)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch text := fmt.Sprintf("the service answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode)); resp.StatusCode {
	case http.StatusOK:
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return nil, errors.New(text)
	default:
		return nil, answerError(text)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, int64(q.most)+1))
	if err != nil {
		return nil, err
	}
	if len(text) > q.most {
		return nil, answerError(fmt.Sprintf("the service's answer has more than %d bytes", q.most))
	}
	return text, nil
}
