// Package live asks pickers what they see, over their metrics address: one that a URL names, or those of a pool in a
// cluster, through the API server and the kubelet.
package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

// Bounds of an answer that is not a stream.
const (
	maxAnswer = 64 << 20
	timeout   = 15 * time.Second
)

// Picker is one replica of a picker.
type Picker struct {
	// Name of its pod, or its URL.
	Name string

	base   url.URL
	client *http.Client
	token  func(context.Context) (string, error) // nil, or an empty token: none is needed
	door   *door                                 // nil: none is between
}

// At is a picker at a URL, such as http://127.0.0.1:9090.
func At(address string) (*Picker, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	base, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a picker's metrics address, such as http://127.0.0.1:9090", address)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	return &Picker{Name: base.Host, base: *base, client: &http.Client{}}, nil
}

// Status is what the replica knows now.
func (p *Picker) Status(ctx context.Context) (*api.Live, error) {
	var status api.Status
	if err := p.get(ctx, "/status", url.Values{"output": {"json"}}, &status); err != nil {
		return nil, err
	}
	if status.Live.Picker == "" && status.Live.Time.IsZero() {
		return nil, fmt.Errorf("picker %s does not serve its state: is it older than this program?", p.Name)
	}
	return &status.Live, nil
}

// Metrics are the picker's, in the text format of Prometheus.
func (p *Picker) Metrics(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := p.do(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of picker %s: %w", p.Name, err)
	}
	return text, nil
}

// Prefixes are the hottest ones, at most limit.
func (p *Picker) Prefixes(ctx context.Context, limit int) (*api.Prefixes, error) {
	out := &api.Prefixes{}
	return out, p.get(ctx, "/prefixes", url.Values{"limit": {strconv.Itoa(limit)}}, out)
}

// Explain asks where a request to a path would go, which is not sent.
func (p *Picker) Explain(ctx context.Context, path string, body []byte) (*api.Explanation, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := p.do(ctx, http.MethodPost, "/explain", url.Values{"path": {path}}, body)
	if err != nil {
		return nil, err
	}
	out := &api.Explanation{}
	return out, p.decode(response, out)
}

// Decisions passes the last decisions to each, at most limit, and continues with new ones if follow is set. It ends with
// ctx, with an error of each, or with the picker.
func (p *Picker) Decisions(ctx context.Context, limit int, follow, ended bool, each func(*api.Decision) error) error {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if follow {
		query.Set("follow", "1")
	}
	if ended {
		query.Set("ended", "1")
	}
	response, err := p.do(ctx, http.MethodGet, "/decisions", query, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := json.NewDecoder(bufio.NewReader(response.Body))
	for {
		var d api.Decision
		switch err := lines.Decode(&d); {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("reading decisions of picker %s: %w", p.Name, err)
		}
		if err := each(&d); err != nil {
			return err
		}
	}
}

// DecisionLog writes the records of the picker's decision log to out, one line each. It ends with ctx, or with an error of out.
func (p *Picker) DecisionLog(ctx context.Context, out io.Writer) error {
	response, err := p.do(ctx, http.MethodGet, "/decision-log", nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(out, response.Body); err != nil {
		return fmt.Errorf("reading the decision log of picker %s: %w", p.Name, err)
	}
	return nil
}

func (p *Picker) get(ctx context.Context, path string, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := p.do(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	return p.decode(response, into)
}

func (p *Picker) decode(response *http.Response, into any) error {
	defer response.Body.Close()
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("reading the answer of picker %s: %w", p.Name, err)
	}
	return nil
}

// do asks, and returns an answer of status 200. Any other is an error with the picker's words.
func (p *Picker) do(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	at := p.base
	at.Path += path
	at.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, at.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if p.token != nil {
		token, err := p.token(ctx)
		if err != nil {
			return nil, err
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking picker %s: %w", p.Name, shorter(err))
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	return nil, p.fault(response)
}

// Fault is an answer of a picker that is none.
type Fault struct {
	Picker, Message string
	Code            int
}

func (f *Fault) Error() string { return fmt.Sprintf("picker %s: %s (%d)", f.Picker, f.Message, f.Code) }

func (p *Picker) fault(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		text = nil // the status is enough
	}
	f := &Fault{Picker: p.Name, Code: response.StatusCode, Message: strings.TrimSpace(string(text))}
	var told api.Fault
	if json.Unmarshal(text, &told) == nil && told.Message != "" {
		f.Message = told.Message
	} else if f.Code == http.StatusNotFound && strings.HasSuffix(response.Request.URL.Path, "/status") {
		f.Message = "this is not the port of a picker's metrics and page, which is 9090 by default (--metrics-address)"
	}
	if f.Message == "" {
		f.Message = http.StatusText(f.Code)
	}
	return f
}

// shorter leaves out what an error of net/http repeats: method and URL.
func shorter(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
