package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/gateway/accept"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/metrics"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/reportpb"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// reportOptions are the flags about reporters.
type reportOptions struct {
	address                 string
	tls                     rpc.Files
	secretFile              string
	keys, keysToken, keysCA string
	issuer, audience        string
	insecure                bool
}

// served reports whether reporters can be authenticated: otherwise reports are disabled.
func (o *reportOptions) served() bool {
	return o.address != "" && (o.secretFile != "" || o.tls.CA != "" || o.keys != "" || o.insecure)
}

func (o *reportOptions) check() error {
	ways := 0
	for _, v := range []string{o.secretFile, o.tls.CA, o.keys} {
		if v != "" {
			ways++
		}
	}
	switch {
	case ways > 1:
		return errors.New("--report-secret-file, --report-client-ca and --report-keys exclude each other")
	case o.insecure && (o.tls != rpc.Files{} || o.keys != ""):
		return errors.New("--report-insecure excludes certificates and tokens")
	case (o.tls.Cert == "") != (o.tls.Key == ""):
		return errors.New("--report-cert and --report-key need each other")
	case ways > 0 && !o.insecure && (o.tls.Cert == "" || o.tls.Key == ""):
		return errors.New("reports need --report-cert and --report-key, or --report-insecure")
	case o.keys != "" && o.issuer == "" && o.keysToken == "":
		return errors.New("--report-keys needs --report-issuer, or the picker's own token in --report-keys-token")
	}
	return nil
}

// authenticator authenticates reporters.
func (o *reportOptions) authenticator(log logr.Logger) (rpc.Authenticator, error) {
	switch {
	case o.secretFile != "":
		s := rpc.SharedSecret{Read: rpc.SecretFile(o.secretFile)}
		_, err := s.Read()
		return s, err
	case o.tls.CA != "":
		return rpc.Certificate{}, nil
	case o.keys == "":
		return rpc.Anybody{}, nil
	}
	t := rpc.Tokens{Issuer: o.issuer, Audience: o.audience, Keys: &rpc.Keys{Log: log, Fetch: rpc.KeysFile(o.keys)}}
	if strings.HasPrefix(o.keys, "https://") {
		client, err := rpc.HTTPSClient(o.keysCA)
		if err != nil {
			return nil, err
		}
		t.Keys.Fetch = rpc.KeysURL(client, o.keys, o.keysToken)
	}
	if t.Issuer == "" {
		own, err := os.ReadFile(o.keysToken)
		if err != nil {
			return nil, fmt.Errorf("reading the picker's own token: %w", err)
		}
		if t.Issuer, err = rpc.IssuerOf(string(own)); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// syncing is what connects the picker with reporters, other replicas and the operator.
type syncing struct {
	server    *rpc.Server       // nil without reporters and peers
	reports   *rpc.Server       // the same; nil when reports are not taken
	reporters rpc.Authenticator // authenticates them; nil if reports is nil
	library   *rpc.Library
	peers     peers
	operate   *rpc.OperateService // nil when no operator receives the state
	reporting atomic.Pointer[accept.Listener]
}

// newSync makes the server for reporters and peers, if either is configured, and the sender to the peers.
func (a *app) newSync(all *options) error {
	o, p := &all.reports, &all.peers
	if !o.served() {
		a.log.Info("Reporter endpoint disabled: no authentication configured")
		if !p.wanted() {
			return nil
		}
	}
	server := rpc.ServerOptions{
		Log:       a.log.WithName("reports"),
		OnOwn:     func(string, endpoint.Endpoint) { a.feedStreams() },
		OnRelease: func(pool string, _ endpoint.Endpoint) { a.feedStreams(); a.moved(pool) },
		OnMoved:   a.moved,
		InFlight:  func(id endpoint.ID) int { return a.picker.InFlight(id) },
	}
	server.Working = a.reportingWorks
	var err error
	if o.served() {
		if server.Auth, err = o.authenticator(server.Log); err != nil {
			return fmt.Errorf("reports: %w", err)
		}
		a.library.Auth = server.Auth
		server.Library = a.library
	}
	a.reporters = server.Auth
	if a.operate, err = a.newOperate(all, server.Auth); err != nil {
		return err
	}
	server.Operate = a.operate
	if p.wanted() {
		if server.Peers, err = a.newPeers(o, p); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	if o.insecure {
		a.log.Info("Serving reports and peers without TLS")
		server.Credentials = insecure.NewCredentials()
	} else {
		files := o.tls
		if files.CA == "" && p.secretFile == "" {
			files.CA = p.ca
		}
		if server.Credentials, err = rpc.ServerTLS(files, o.tls.CA != ""); err != nil {
			return fmt.Errorf("reports: %w", err)
		}
	}
	server.Credentials = paced{server.Credentials}
	a.server = rpc.NewServer(server)
	if o.served() {
		a.reports = a.server
	}
	return nil
}

// paced are credentials of a server whose clients are authenticated call by call: headers are read before, at a limited rate.
type paced struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (p paced) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return accept.Paced(raw, conn), info, nil
}

// Clone implements credentials.TransportCredentials.
func (p paced) Clone() credentials.TransportCredentials { return paced{p.TransportCredentials.Clone()} }

// serveSync serves until ctx ends.
func (a *app) serveSync(ctx context.Context, l net.Listener) error {
	if a.server == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, a.server.Close)
	defer stop()
	limited := accept.Limit(l, a.plan.reports, a.budget).Counting(a.overload.Port("reports"))
	a.reporting.Store(limited)
	return a.server.Serve(limited)
}

// reportingWorks notes that a stream of a connection of reporters, replicas or the operator is under way, until end is called.
func (a *app) reportingWorks(remote net.Addr) (end func()) {
	if l := a.reporting.Load(); l != nil {
		return l.Stream(remote)
	}
	return func() {}
}

// target is what the server of reports needs to know of an endpoint.
func (a *app) target(f *picker.Feed) rpc.Target {
	return rpc.Target{
		Endpoint: f.Endpoint, Writer: f.Writer, Batch: f.Spec.ReportBatch,
		Roots:       []cachesync.Root{cachesync.NewRoot(f.Spec.Seed, f.Spec.Model, f.Spec.BlockTokens, f.Spec.Media)},
		OnLookahead: f.Lookahead,
		OnStored:    func(keys []kvblock.Key) { a.picker.Confirm(f, keys) },
		OtherRoad:   f.Endpoint.EventsAddress != "",
	}
}

// moved sets the roots of the keys that a pool's reporters have sent. What streams bring has keys of
// the present one.
func (a *app) moved(pool string) {
	var roots []string
	if a.reports != nil {
		for _, s := range a.reports.Status(pool) {
			if s.Owned && s.KeyID != "" {
				roots = append(roots, s.KeyID)
			}
		}
	}
	a.picker.Moved(pool, roots)
}

// feedStreams lets the picker subscribe to the endpoints whose reporters are not connected. It is called when that changes,
// and when the endpoints change.
func (a *app) feedStreams() {
	a.feeding.Lock()
	defer a.feeding.Unlock()
	unclear := a.sources.unclear(a.feeds)
	for pool, list := range a.feeds {
		var kept []events.Feed
		for i := range list {
			if a.reports == nil || !a.reports.Owned(pool, &list[i].Endpoint) {
				f := a.sources.of(list[i])
				if unclear[f.Endpoint.ID] {
					f.Endpoint.EventsAddress = ""
				}
				kept = append(kept, f)
			}
		}
		a.streams.Set(pool, kept)
	}
}

// silent are the endpoints without a reporter whose events cannot be subscribed to: their engines report that they publish
// none, or several of them share the port where the events are assumed.
func (a *app) silent(pool string) (all []events.Status) {
	a.feeding.Lock()
	defer a.feeding.Unlock()
	unclear := a.sources.unclear(a.feeds)
	for i := range a.feeds[pool] {
		f := &a.feeds[pool][i]
		reports := a.sources.silent(&f.Endpoint)
		if (reports || unclear[f.Endpoint.ID]) && (a.reports == nil || !a.reports.Owned(pool, &f.Endpoint)) {
			stats := &events.Stats{}
			stats.Silent.Store(reports)
			all = append(all, events.Status{Endpoint: f.Endpoint, State: events.Disconnected, Stats: stats})
		}
	}
	return all
}

// knowledge is how far it is known what the endpoints of a pool hold: by their streams, or by their reporters where
// those have taken over or are the only road.
func (a *app) knowledge(pool string) []events.Status {
	all := a.streams.Status(pool)
	all = append(all, a.silent(pool)...)
	if a.reports == nil {
		return all
	}
	for _, s := range a.reports.Status(pool) {
		if s.Owned || s.Endpoint.EventsAddress == "" {
			stats := &events.Stats{}
			stats.Unreadable.Store(s.Unreadable)
			stats.BlockSizeUnsupported.Store(s.Unsupported)
			stats.Partial.Store(s.Unindexable - min(s.Unindexable, s.Unsupported))
			all = append(all, events.Status{Endpoint: s.Endpoint, State: stateOf(&s.Status), Stats: stats})
		}
	}
	return all
}

// stateOf puts a report's state into the words of streams.
func stateOf(s *cachesync.Status) events.State {
	switch {
	case s.Borrowed:
		return events.Unverified
	case !s.Connected || !s.Owned:
		return events.Disconnected
	case s.Epoch == 0:
		return events.Syncing
	}
	switch s.State {
	case reportpb.State_STATE_SYNCED:
		return events.Synced
	case reportpb.State_STATE_UNVERIFIED:
		return events.Unverified
	case reportpb.State_STATE_DEGRADED:
		return events.Degraded
	case reportpb.State_STATE_SYNCING:
		return events.Syncing
	}
	return events.Disconnected
}

// pools are those that have endpoints, streams or reports.
func (a *app) pools() []string {
	names := a.streams.Pools()
	if a.reports != nil {
		names = append(names, a.reports.Pools()...)
	}
	a.feeding.Lock()
	names = slices.AppendSeq(names, maps.Keys(a.feeds))
	a.feeding.Unlock()
	slices.Sort(names)
	return slices.Compact(names)
}

// refusedReports counts the streams of reporters that were not taken.
func (a *app) refusedReports() rpc.Refused {
	if a.reports == nil {
		return rpc.Refused{}
	}
	return a.reports.Refused()
}

// reported are the reports of all pools.
func (a *app) reported() []metrics.Report {
	if a.reports == nil {
		return nil
	}
	var all []metrics.Report
	for _, pool := range a.reports.Pools() {
		key := config.ParseKey(pool)
		for _, s := range a.reports.Status(pool) {
			all = append(all, metrics.Report{Namespace: key.Namespace, Pool: key.Name, Endpoint: s.Endpoint, Status: s.Status})
		}
	}
	return all
}
