package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/hosts"
)

// EnginesPool is the name of the pool that engines given by URL are in.
const EnginesPool = "engines"

const (
	// maxEngines is the most URLs that a list can have.
	maxEngines = 1000
	// lookUpEvery is how often host names are resolved again, lookUpLimit how long that can take for one of them.
	lookUpEvery = 5 * time.Second
	lookUpLimit = 2 * time.Second
)

// EngineURL is an engine as a command line names it: http://HOST:PORT, with the ports of its KV events where they are
// given.
type EngineURL struct {
	text           string // as given
	host           string // a DNS name or an IP address
	port           int
	tls            bool
	events, replay int // 0 where not given
}

// ParseEngineURLs reads a list of URLs, separated by commas. A URL can leave out "http://" and end in /v1, as base URLs
// of clients do. The ports of KV events are its parameters: http://HOST:PORT?events=5557&replay=5657.
func ParseEngineURLs(list string) ([]EngineURL, error) {
	var all []EngineURL
	seen := map[string]bool{}
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		e, err := parseEngineURL(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		if seen[e.authority()] {
			return nil, fmt.Errorf("%q is listed twice", text)
		}
		seen[e.authority()] = true
		all = append(all, e)
	}
	switch {
	case len(all) == 0:
		return nil, errors.New("no engine given; want http://HOST:PORT, separated by commas")
	case len(all) > maxEngines:
		return nil, fmt.Errorf("%d engines are too many, at most %d", len(all), maxEngines)
	}
	return all, checkTLS(all)
}

// checkTLS checks that all engines are called alike: the certificates of a pool are for one name.
func checkTLS(all []EngineURL) error {
	for _, e := range all {
		switch {
		case e.tls != all[0].tls:
			return errors.New("http and https cannot be mixed; all engines of a pool are called alike")
		case e.tls && (e.host != all[0].host || isIP(e.host)):
			return errors.New("https needs one host name for all engines, which their certificates are for; " +
				"otherwise describe the engines in files (--standalone)")
		}
	}
	return nil
}

func isIP(host string) bool { _, err := netip.ParseAddr(host); return err == nil }

func (e *EngineURL) authority() string { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }

// Path is the URL of a path of the engine.
func (e *EngineURL) Path(path string) string {
	scheme := "http"
	if e.tls {
		scheme = "https"
	}
	return scheme + "://" + e.authority() + path
}

func parseEngineURL(text string) (EngineURL, error) {
	full := text
	if !strings.Contains(text, "://") {
		full = "http://" + text
	}
	u, err := url.Parse(full)
	if err != nil {
		if parse := (*url.Error)(nil); errors.As(err, &parse) {
			err = parse.Err
		}
		return EngineURL{}, fmt.Errorf("%w; want http://HOST:PORT", err)
	}
	e := EngineURL{text: text, host: strings.ToLower(u.Hostname()), tls: u.Scheme == "https"}
	port, err := strconv.Atoi(u.Port())
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return e, fmt.Errorf("scheme %q is not supported; want http://HOST:PORT", u.Scheme)
	case u.User != nil:
		return e, errors.New("a user or password is not supported; want http://HOST:PORT")
	case e.host == "":
		return e, errors.New("the host is missing; want http://HOST:PORT")
	case u.Port() == "":
		return e, fmt.Errorf("the port is missing; vLLM listens on 8000 by default: %s://%s", u.Scheme, hostPort(e.host, 8000))
	case err != nil || port < 1 || port > 65_535:
		return e, fmt.Errorf("port %s is not from 1 to 65535", u.Port())
	case !slices.Contains([]string{"", "/v1"}, strings.TrimRight(u.Path, "/")) || u.Fragment != "":
		return e, fmt.Errorf("leave out what follows the port: %s://%s", u.Scheme, u.Host)
	}
	e.port = port
	if ip, err := netip.ParseAddr(e.host); err == nil {
		kind := discoveryv1.AddressTypeIPv4
		if ip.Is6() {
			kind = discoveryv1.AddressTypeIPv6
		}
		if wrong := wrongAddress(e.host, kind); wrong != "" {
			return e, fmt.Errorf("the address %s", wrong)
		}
	}
	return e, e.readPorts(u)
}

// readPorts reads the parameters of the URL.
func (e *EngineURL) readPorts(u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("reading the parameters: %w", err)
	}
	for _, name := range sortedKeys(query) {
		into := map[string]*int{"events": &e.events, "replay": &e.replay}[name]
		if into == nil {
			return fmt.Errorf("parameter %q is unknown; events and replay are the ports of KV events", name)
		}
		port, err := strconv.Atoi(query.Get(name))
		if err != nil || port < 1 || port > 65_535 || len(query[name]) > 1 {
			return fmt.Errorf("parameter %s must be one port from 1 to 65535", name)
		}
		*into = port
	}
	if e.replay > 0 && e.events == 0 {
		return errors.New("parameter replay needs events, the port that the engine publishes its KV events on")
	}
	return nil
}

// Engines are the objects of engines that are given by URL: one pool with all defaults, and an EndpointSlice for each URL.
// They are admitted and translated like those of files. It is not safe for concurrent use.
type Engines struct {
	directory *Directory
	pool      []byte
	urls      []EngineURL
	// lookUp resolves a host name, to addresses of one kind.
	lookUp func(ctx context.Context, host string) ([]netip.Addr, error)
	every  time.Duration
}

// NewEngines returns the engines at urls, which serve the model. It fails if the name of the model is not valid. It looks up
// nothing yet.
func NewEngines(urls []EngineURL, model string, settings Settings, log logr.Logger) (*Engines, error) {
	admitter, err := crdadmission.New()
	if err != nil {
		return nil, fmt.Errorf("loading the definitions: %w", err)
	}
	return newEngines(urls, model, admitter, settings, log)
}

func newEngines(urls []EngineURL, model string, admitter *crdadmission.Admitter, settings Settings, log logr.Logger) (*Engines, error) {
	pool, err := enginesPool(urls, model)
	if err != nil {
		return nil, err
	}
	e := &Engines{pool: pool, urls: urls, every: lookUpEvery, lookUp: func(ctx context.Context, host string) ([]netip.Addr, error) {
		return hosts.Lookup(ctx, net.DefaultResolver, host)
	}}
	if e.directory, err = newReader(admitter, settings, log); err != nil {
		return nil, err
	}
	// The pool alone at first: a mistake in it is one of the command line.
	e.directory.list = func(context.Context) (map[string]reading, error) {
		return map[string]reading{"--model": {content: e.pool}}, nil
	}
	if state, _ := e.directory.Load(context.Background()); len(state.Problems) > 0 {
		return nil, fmt.Errorf("--model %q: %s", model, state.Problems[0].Detail)
	}
	e.directory.list = e.objects
	return e, nil
}

// enginesPool is the pool of the engines, as JSON.
func enginesPool(urls []EngineURL, model string) ([]byte, error) {
	spec := map[string]any{
		"model":    map[string]any{"name": model},
		"selector": map[string]any{"matchLabels": map[string]any{v1alpha1.LabelPool: EnginesPool}},
	}
	if urls[0].tls {
		spec["engine"] = map[string]any{"tls": map[string]any{"serverName": urls[0].host}}
	}
	return json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.KindInferencePool,
		"metadata": map[string]any{"name": EnginesPool}, "spec": spec,
	})
}

// Follow calls onChange with the state now, and whenever a host name has other addresses, until ctx ends. onChange is called
// by one goroutine, the caller's. If a name cannot be resolved, its engines keep the addresses that they had.
func (e *Engines) Follow(ctx context.Context, onChange func(State)) {
	state, _ := e.Load(ctx)
	onChange(state)
	tick := time.NewTicker(e.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if state, changed := e.Load(ctx); changed && ctx.Err() == nil {
				onChange(state)
			}
		}
	}
}

// Load looks the host names up and returns the state, and whether anything has changed since the last Load.
func (e *Engines) Load(ctx context.Context) (State, bool) { return e.directory.Load(ctx) }

// objects are the pool and the slices, each as the content of a file that is named as on the command line.
func (e *Engines) objects(ctx context.Context) (map[string]reading, error) {
	files := map[string]reading{"--model": {content: e.pool}}
	type found struct {
		name string
		reading
	}
	answers := make(chan found)
	for i := range e.urls {
		go func() { answers <- found{"--engines " + e.urls[i].text, e.slice(ctx, i)} }()
	}
	for range e.urls {
		one := <-answers
		files[one.name] = one.reading
	}
	return files, nil
}

// slice is the slice of the i-th engine, as JSON.
func (e *Engines) slice(ctx context.Context, i int) reading {
	u := &e.urls[i]
	addresses, err := e.addresses(ctx, u.host)
	if err != nil {
		return reading{err: err.Error()}
	}
	ports := []map[string]any{{"name": portHTTP, "port": u.port}}
	if u.events > 0 {
		ports = append(ports, map[string]any{"name": portEvents, "port": u.events})
	}
	if u.replay > 0 {
		ports = append(ports, map[string]any{"name": portReplay, "port": u.replay})
	}
	endpoints := make([]map[string]any, len(addresses))
	for j, address := range addresses {
		uid, name := hostPort(address.String(), u.port), u.authority()
		if len(addresses) > 1 {
			name = uid
		}
		endpoints[j] = map[string]any{
			"addresses": []string{address.String()},
			"targetRef": map[string]any{"kind": "Pod", "name": name, "uid": uid},
		}
	}
	kind := discoveryv1.AddressTypeIPv4
	if addresses[0].Is6() {
		kind = discoveryv1.AddressTypeIPv6
	}
	content, err := json.Marshal(map[string]any{
		"apiVersion": discoveryv1.SchemeGroupVersion.String(), "kind": kindEndpointSlice,
		"metadata":    map[string]any{"name": fmt.Sprintf("engine-%d", i+1), "labels": map[string]any{v1alpha1.LabelPool: EnginesPool}},
		"addressType": kind, "ports": ports, "endpoints": endpoints,
	})
	if err != nil {
		return reading{err: err.Error()}
	}
	return reading{content: content}
}

// addresses of a host, sorted. Each is an engine, as behind a headless Service.
func (e *Engines) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpLimit)
	defer cancel()
	found, err := e.lookUp(ctx, host)
	switch {
	case err != nil:
		return nil, plainLookUp(host, err)
	case len(found) == 0:
		return nil, fmt.Errorf("looking up host %q: it has no address", host)
	}
	return found, nil
}

// plainLookUp drops what changes from one failure to the next, such as ports, so that the same failure is logged once.
func plainLookUp(host string, err error) error {
	if failed := (*net.DNSError)(nil); errors.As(err, &failed) {
		return fmt.Errorf("looking up host %q: %s", host, failed.Err)
	}
	return fmt.Errorf("looking up host %q: %w", host, err)
}
