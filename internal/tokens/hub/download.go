package hub

import (
	"context"
	"crypto/sha1" // what git names files by
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

const (
	// maxHops bounds the requests for one file: the hub, and redirects.
	maxHops = 6
	// maxHeader bounds the header of an answer, in bytes.
	maxHeader = 64 << 10
	// headerTimeout bounds the wait for it.
	headerTimeout = 20 * time.Second
	userAgent     = "kvasir-picker"
)

// ParseEndpoint checks the URL of a hub.
func ParseEndpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("not a URL")
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return nil, errors.New("want https://HOST[:PORT][/PATH], or http for a mirror in a network that you trust")
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("want no user, query or fragment; a token has a file of its own")
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	return u, nil
}

// Private reports whether a token can be sent to a hub: over TLS, or on this machine.
func Private(endpoint *url.URL) bool {
	ip := net.ParseIP(endpoint.Hostname())
	return endpoint.Scheme == "https" || ip != nil && ip.IsLoopback()
}

// ParseProxy checks the URL of a proxy through which a hub is reached.
func ParseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("not a URL")
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "", u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("want http://HOST:PORT or https://HOST:PORT")
	case u.User != nil:
		return nil, errors.New("a proxy that asks for a password is not supported: the password would be readable in the picker's arguments")
	}
	u.Path = ""
	return u, nil
}

// client asks one hub.
type client struct {
	endpoint  *url.URL
	proxy     *url.URL // nil for none
	transport *http.Transport
}

// newClient makes a client of a hub, through a proxy unless that is nil.
func newClient(endpoint, proxy *url.URL, authorities *certs.Authorities) *client {
	d, through := &dialer{endpoint: hostPort(endpoint)}, (func(*http.Request) (*url.URL, error))(nil)
	if proxy != nil {
		d.endpoint, through = hostPort(proxy), http.ProxyURL(proxy)
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if authorities != nil {
		trust.RootCAs = authorities.Pool()
	}
	return &client{endpoint, proxy, &http.Transport{
		Proxy: through, OnProxyConnectResponse: admitted,
		DialContext: d.dial, TLSClientConfig: trust, DisableCompression: true, ForceAttemptHTTP2: true,
		MaxIdleConns: 2 * updatesAtOnce, IdleConnTimeout: time.Minute,
		TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: headerTimeout, MaxResponseHeaderBytes: maxHeader,
	}}
}

// admitted returns the error of a proxy that does not connect to a host.
func admitted(_ context.Context, proxy *url.URL, _ *http.Request, resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusProxyAuthRequired:
		return fmt.Errorf("the proxy %s asks for a password, which is not supported: use one that admits the picker by its address", proxy.Host)
	}
	return fmt.Errorf("the proxy %s answers %d %s", proxy.Host, resp.StatusCode, http.StatusText(resp.StatusCode))
}

func (c *client) close()        { c.transport.CloseIdleConnections() }
func (c *client) private() bool { return Private(c.endpoint) }

// hostPort is the address that a URL is reached at.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// StatusError is an answer of the hub that is none.
type StatusError struct {
	Status int
	// Code is what the hub adds to it: RepoNotFound, RevisionNotFound, EntryNotFound or GatedRepo; empty for others.
	Code string
	// RetryAfter is how long the hub wants to be left alone; 0 where it says nothing.
	RetryAfter time.Duration
	// token: one was sent.
	token bool
}

// Error says what the answer means, and what to do.
func (e *StatusError) Error() string {
	text := "it answers " + strconv.Itoa(e.Status) + ": "
	switch {
	case e.Code == "GatedRepo":
		return text + "the repository is gated: accept its terms at the hub, and name the token of that account (hub.tokenSecretRef, --hub-token-file)"
	case e.Status == http.StatusUnauthorized && e.token:
		return text + "the token is wrong or has expired, or its account knows no such repository: check hub.repository and the token"
	case e.Status == http.StatusUnauthorized:
		return text + "there is no such repository, or it is private: check hub.repository, or name a token (hub.tokenSecretRef, --hub-token-file)"
	case e.Status == http.StatusForbidden && e.token:
		return text + "the token does not permit to read the repository: use the token of an account that can read it"
	case e.Status == http.StatusForbidden:
		return text + "the repository is not open to everyone: name a token (hub.tokenSecretRef, --hub-token-file)"
	case e.Code == "RepoNotFound":
		return text + "there is no such repository: check hub.repository"
	case e.Code == "RevisionNotFound":
		return text + "the repository has no such branch, tag or commit: check hub.revision"
	case e.Status == http.StatusNotFound:
		return text + "there is no such repository, revision or file: check hub.repository and hub.revision"
	case e.Status == http.StatusTooManyRequests:
		return text + "too many requests; it is asked again later. A token can raise the limit, and so can a mirror"
	}
	return text + http.StatusText(e.Status)
}

// absent is the error about a file that a model needs and the repository does not have.
func absent(name string) error { return fmt.Errorf("the repository has no file %s", name) }

// isAbsent reports whether the repository has no such file, and not another error.
func isAbsent(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Status == http.StatusNotFound && (status.Code == "EntryNotFound" || status.Code == "")
}

// errTooLarge is the error about files that have more bytes than a model's can.
var errTooLarge = fmt.Errorf("the files have more than %d bytes", int64(modelfiles.MaxBytes))

// answer of the hub, or of a host to which it redirects.
type answer struct {
	*http.Response
	// What the hub itself announces, and no other host.
	commit, etag string
	size         int64 // bytes; -1 if it is not announced
}

// commit asks for the present commit of a revision.
func (c *client) commit(ctx context.Context, r *modelfiles.Repository, token string) (string, error) {
	a, err := c.ask(ctx, http.MethodHead, r, token, r.At(), r.Wanted()[0])
	if status := (*StatusError)(nil); errors.As(err, &status) && status.Code == "EntryNotFound" {
		return "", absent(r.Wanted()[0])
	}
	if err != nil {
		return "", err
	}
	a.Body.Close()
	return a.commit, nil
}

// download writes a file of a commit, of at most limit bytes.
func (c *client) download(
	ctx context.Context, r *modelfiles.Repository, token, commit, name string, to *os.File, limit int64,
) error {
	a, err := c.ask(ctx, http.MethodGet, r, token, commit, name)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	encoding := a.Header.Get("Content-Encoding")
	switch {
	case a.commit != commit:
		return fmt.Errorf("it has sent a file of commit %.8s instead of %.8s", a.commit, commit)
	case encoding != "" && encoding != "identity":
		return errors.New("it has sent a compressed file, which was not asked for")
	case a.size > limit || a.ContentLength > limit:
		return errTooLarge
	case a.size >= 0 && a.ContentLength >= 0 && a.size != a.ContentLength:
		return fmt.Errorf("it has announced %d bytes and sends %d", a.size, a.ContentLength)
	}
	n, err := io.Copy(to, io.LimitReader(a.Body, limit+1))
	switch {
	case err != nil:
		return fmt.Errorf("after %d bytes: %w", n, err)
	case n > limit:
		return errTooLarge
	case a.size >= 0 && n != a.size:
		return fmt.Errorf("it has announced %d bytes and sent %d", a.size, n)
	}
	return verify(to, n, a.etag)
}

// ask sends a request for a file, and follows redirects. The answer has status 200, or is a redirect of the hub when only the header
// is asked for. No error has a URL: those of redirects contain secrets.
func (c *client) ask(ctx context.Context, method string, r *modelfiles.Repository, token, revision, name string) (*answer, error) {
	segments := strings.Split(name, "/")
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	next, err := url.Parse(c.endpoint.String() + "/" + r.Name + "/resolve/" + url.PathEscape(revision) + "/" + strings.Join(segments, "/"))
	if err != nil {
		return nil, errors.New("no URL can be made of the name")
	}
	a := &answer{size: -1}
	atHub := true // until a redirect has led elsewhere
	for range maxHops {
		atHub = atHub && next.Scheme == c.endpoint.Scheme && hostPort(next) == hostPort(c.endpoint)
		if c.proxy != nil && !atHub {
			if err := throughProxy(next.Hostname()); err != nil {
				return nil, err
			}
		}
		req := (&http.Request{Method: method, URL: next, Host: next.Host, Header: http.Header{
			"User-Agent": {userAgent}, "Accept-Encoding": {"identity"},
		}}).WithContext(ctx)
		if atHub && token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		if a.Response, err = c.transport.RoundTrip(req); err != nil { //nolint:bodyclose // closed below, or by the caller
			if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
				err = fmt.Errorf("%w: name the authority (hub.caCertificates of the chart, --hub-ca of the picker)", err)
			}
			return nil, err
		}
		if atHub {
			a.announced()
		}
		switch status := a.StatusCode; {
		case status == http.StatusOK, isRedirect(status) && method == http.MethodHead && a.commit != "":
			if a.commit == "" {
				a.Body.Close()
				return nil, errors.New("it names no commit (X-Repo-Commit): it is no model hub, or something before it removes that header")
			}
			return a, nil
		case !isRedirect(status):
			a.Body.Close()
			return nil, statusError(a.Response, token != "")
		}
		location := a.Header.Get("Location")
		a.Body.Close()
		if next, err = target(next, location); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("more than %d redirects", maxHops-1)
}

// announced keeps what the hub says of a file. The first redirect says it; the headers of what follows describe another object.
func (a *answer) announced() {
	commit := a.Header.Get("X-Repo-Commit")
	if !modelfiles.IsCommit(commit) {
		return
	}
	a.commit, a.etag, a.size = commit, a.Header.Get("X-Linked-Etag"), -1
	if a.etag == "" {
		a.etag = a.Header.Get("ETag")
	}
	if size, err := strconv.ParseInt(a.Header.Get("X-Linked-Size"), 10, 64); err == nil {
		a.size = size
	}
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// target is where a redirect leads: to http only from http.
func target(from *url.URL, location string) (*url.URL, error) {
	to, err := from.Parse(location)
	switch {
	case location == "" || err != nil:
		return nil, errors.New("it redirects to what is no URL")
	case to.Scheme != "https" && (to.Scheme != "http" || from.Scheme != "http"):
		return nil, fmt.Errorf("it redirects to a URL that is not https (%.16q)", to.Scheme)
	case to.Hostname() == "" || to.User != nil:
		return nil, errors.New("it redirects to what is no URL of a hub")
	}
	return to, nil
}

func statusError(resp *http.Response, token bool) *StatusError {
	e := &StatusError{Status: resp.StatusCode, token: token}
	switch code := resp.Header.Get("X-Error-Code"); code {
	case "RepoNotFound", "RevisionNotFound", "EntryNotFound", "GatedRepo":
		e.Code = code
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(min(seconds, int(mostRetryAfter.Seconds()))) * time.Second
	}
	return e
}

// verify checks a file against the hash that the hub announces, where its ETag is one: the SHA-256 of a large file, and for others
// what git names the file by. Some mirrors have the SHA-1 of the content instead. Other tags say nothing of the content.
func verify(f *os.File, size int64, etag string) error {
	etag = strings.Trim(strings.TrimPrefix(etag, "W/"), `"`)
	want, err := hex.DecodeString(etag)
	if err != nil || len(want) != sha256.Size && len(want) != sha1.Size {
		return nil //nolint:nilerr // a tag of another kind
	}
	strong, content, git := sha256.New(), sha1.New(), sha1.New()
	fmt.Fprintf(git, "blob %d\x00", size)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := io.Copy(io.MultiWriter(strong, content, git), f); err != nil {
		return err
	}
	for _, h := range []interface{ Sum([]byte) []byte }{strong, content, git} {
		if string(h.Sum(nil)) == string(want) {
			return nil
		}
	}
	return errors.New("the file that was sent is not the one that was announced (its hash differs)")
}
