package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/logging"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// Bounds of the service.
const (
	// maxMessage bounds a message in bytes.
	maxMessage = 4 << 20
	// helloTimeout is how long a stream can stay silent at its beginning.
	helloTimeout = 10 * time.Second
	// silence is how long a stream can send nothing; digests are sent far more often.
	silence = 2 * time.Minute
	// renewPauses is how long proofs can be renewed after an outage, in pauses.
	renewPauses = 10
	// proofDigests is how many digests can be missed before equality no longer counts as shown.
	proofDigests = 3
	// streamWindow and connectionWindow are how many bytes a client can send ahead of what was read.
	streamWindow, connectionWindow = 256 << 10, 1 << 20
	// maxStreams bounds the streams of a connection: the ranks of a pod, and some that have not ended yet.
	maxStreams = 256
	// maxHeader bounds the header of a call in bytes, which is read before its client is authenticated; it has a token.
	// connectTimeout bounds the time until a connection can be used.
	maxHeader      = 32 << 10
	connectTimeout = 20 * time.Second
)

// Target is an endpoint whose reports the picker expects.
type Target struct {
	Endpoint endpoint.Endpoint
	// Roots of keys, the first is wanted.
	Roots []cachesync.Root
	// Writer is where the endpoint's blocks go. From OnOwn to OnRelease it is the server's alone.
	Writer kvindex.Writer
	// Batch is how long changes can be held back to be sent together.
	Batch time.Duration
	// OnLookahead and OnStored are cachesync.ReceiverOptions'.
	OnLookahead func()
	OnStored    func(keys []kvblock.Key)
	// OtherRoad means that the endpoint's events are also available without a reporter.
	OtherRoad bool
}

// ServerOptions of a Server. Zero values take the defaults.
type ServerOptions struct {
	// Auth identifies a reporter; without it reports are refused.
	Auth Authenticator
	// Peers, if set, receives the updates of other pickers.
	Peers *PeerService
	// Operate, if set, sends the picker's state to the operator.
	Operate *OperateService
	// Library, if set, takes the files of models.
	Library *Library
	// Credentials of the transport; nil is plain text.
	Credentials credentials.TransportCredentials
	// Digest is how often reporters send digests. What the last one has shown counts for three times as long.
	Digest time.Duration
	// Grace is how long an endpoint with another source of events waits for its reporter to reconnect.
	Grace time.Duration
	// OutagePause is the time between two checks whether an outage continues (see Identity).
	OutagePause time.Duration
	// OnOwn is called before the first change to the index by a reporter of that endpoint: the previous writer must have
	// stopped when it returns. OnRelease is called when the reporter has not reconnected. OnOwn must not call the server,
	// except for Owned.
	OnOwn, OnRelease func(pool string, ep endpoint.Endpoint)
	// InFlight, if set, is how many requests this picker has sent to an endpoint that have not ended.
	InFlight func(id endpoint.ID) int
	// Working, if set, is called when a stream begins, with the address of its client, and what it returns when the stream ends. Those of
	// clients that are not authenticated end at once.
	Working func(remote net.Addr) (end func())
	// OnMoved is called when an endpoint's keys in the index have changed to another root.
	OnMoved func(pool string)
	Log     logr.Logger
	// Now is the clock.
	Now func() time.Time
}

// DefaultGrace is how long an endpoint waits for its reporter to reconnect, DefaultOutagePause the time between two checks
// whether an outage continues.
const (
	DefaultGrace       = 10 * time.Second
	DefaultOutagePause = 30 * time.Second
)

// Server takes reports. It is safe for concurrent use.
type Server struct {
	UnimplementedReportServer

	options ServerOptions
	grpc    *grpc.Server
	readers sync.WaitGroup
	setting sync.Mutex // one Set at a time; taken before mu

	mu      sync.Mutex
	pools   map[string]map[string]*target // guarded by mu; by pool, by the endpoint's epoch
	byID    map[endpoint.ID]*target       // guarded by mu
	refused Refused                       // guarded by mu
	panics  atomic.Uint64                 // while blocks of peers were applied
	logged  map[codes.Code]*loggedRefusal // guarded by mu
}

// BorrowPanics is how many loans were ended by a panic while blocks of a peer were applied.
func (s *Server) BorrowPanics() uint64 { return s.panics.Load() }

// refusalLogPause is the time between two log lines about refusals of one kind: reporters retry every few seconds, and any
// client that reaches the port can be refused.
const refusalLogPause = time.Minute

// loggedRefusal is when a refusal of one kind was logged, and how many were not since.
type loggedRefusal struct {
	at      time.Time
	skipped int
}

// Refused counts the streams that were not taken.
type Refused struct{ Unauthenticated, NotTheirOwn, UnknownPod, Malformed, Panicked uint64 }

// target is a Target that is applied.
type target struct {
	Target
	pool     string
	receiver *cachesync.Receiver

	mu      sync.Mutex
	owned   bool                    // guarded by mu
	gone    bool                    // guarded by mu; no stream can begin
	cancel  context.CancelCauseFunc // guarded by mu; of the stream there is
	done    chan struct{}           // guarded by mu; closed when it has ended
	outbox  chan *pb.PickerMessage  // guarded by mu; messages from outside the stream
	release *time.Timer             // guarded by mu
}

// NewServer returns a server without targets.
func NewServer(o ServerOptions) *Server {
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.OutagePause <= 0 {
		o.OutagePause = DefaultOutagePause
	}
	if o.Digest <= 0 {
		o.Digest = cachesync.DefaultDigestEvery
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	if o.OnOwn == nil {
		o.OnOwn = func(string, endpoint.Endpoint) {}
	}
	if o.OnMoved == nil {
		o.OnMoved = func(string) {}
	}
	if o.OnRelease == nil {
		o.OnRelease = func(string, endpoint.Endpoint) {}
	}
	s := &Server{options: o, pools: map[string]map[string]*target{}, byID: map[endpoint.ID]*target{}, logged: map[codes.Code]*loggedRefusal{}}
	s.grpc = grpc.NewServer(
		grpc.StreamInterceptor(s.catchStream), grpc.ForceServerCodecV2(newCodec()),
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connectionWindow),
		grpc.Creds(o.Credentials), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeader), grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	if o.Auth != nil {
		s.grpc.RegisterService(&reports, s)
	}
	if o.Peers != nil {
		o.Peers.server = s
		RegisterPeerServer(s.grpc, o.Peers)
	}
	if o.Operate != nil {
		RegisterOperateServer(s.grpc, o.Operate)
	}
	if o.Library != nil {
		RegisterModelFilesServer(s.grpc, o.Library)
	}
	return s
}

// Serve accepts reporters until Close. It closes the listener.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving reports: %w", err)
	}
	return nil
}

// Close ends all streams and waits for them. What they have reported stays in the indices.
func (s *Server) Close() {
	for _, pool := range s.Pools() {
		s.Set(pool, nil)
	}
	s.grpc.Stop()
	s.readers.Wait()
}

// Pools lists the pools that have targets, in no order.
func (s *Server) Pools() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	pools := make([]string, 0, len(s.pools))
	for pool := range s.pools {
		pools = append(pools, pool)
	}
	return pools
}

// Set replaces the targets of a pool. When it returns, nothing more is written for removed targets; a target that stays is
// not disturbed. An endpoint in several pools reports to one of them.
func (s *Server) Set(pool string, targets []Target) {
	s.setting.Lock()
	defer s.setting.Unlock()
	s.mu.Lock()
	old, next := s.pools[pool], map[string]*target{}
	roots := map[*target][]cachesync.Root{} // of those that stay
	for i := range targets {
		epoch := targets[i].Endpoint.Epoch()
		if next[epoch] != nil {
			continue
		}
		if t := old[epoch]; t != nil && t.Writer == targets[i].Writer {
			next[epoch] = t
			delete(old, epoch)
			roots[t] = targets[i].Roots
			continue
		}
		next[epoch] = s.start(pool, targets[i])
	}
	for _, t := range old {
		if s.byID[t.Endpoint.ID] == t {
			delete(s.byID, t.Endpoint.ID)
		}
	}
	for _, t := range next {
		s.byID[t.Endpoint.ID] = t
	}
	if s.pools[pool] = next; len(next) == 0 {
		delete(s.pools, pool)
	}
	s.mu.Unlock()
	for _, t := range old {
		t.stop()
	}
	for t, wanted := range roots { // a receiver might be waiting for s.mu
		t.update(wanted)
	}
}

// start makes a target without a stream.
func (s *Server) start(pool string, t Target) *target {
	out := &target{Target: t, pool: pool}
	out.receiver = cachesync.NewReceiver(t.Writer, cachesync.ReceiverOptions{
		Roots: t.Roots, Batch: t.Batch, Digest: s.options.Digest, OnStored: t.OnStored, OnLookahead: t.OnLookahead,
		OnOwn: func() {
			out.mu.Lock()
			out.owned = true
			out.mu.Unlock()
			s.options.OnOwn(pool, t.Endpoint)
		},
	})
	return out
}

// update announces other roots. Server.setting is held.
func (t *target) update(roots []cachesync.Root) {
	same := len(roots) == len(t.Roots)
	for i := range roots {
		same = same && roots[i].Same(&t.Roots[i])
	}
	if same {
		return
	}
	t.Roots = roots
	m := t.receiver.SetRoots(roots)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outbox == nil {
		return
	}
	select {
	case t.outbox <- m:
	default:
		t.cancel(status.Error(codes.ResourceExhausted, "the reporter does not read"))
	}
}

// stop ends the target's stream and waits for it.
func (t *target) stop() {
	t.mu.Lock()
	t.gone = true
	if t.release != nil {
		t.release.Stop()
	}
	done := t.done
	if t.cancel != nil {
		t.cancel(status.Error(codes.NotFound, "the endpoint has gone"))
	}
	t.mu.Unlock()
	if done != nil {
		<-done
	}
}

// Owned reports whether the blocks of an endpoint's life come from its reporter.
func (s *Server) Owned(pool string, ep *endpoint.Endpoint) bool {
	s.mu.Lock()
	t := s.pools[pool][ep.Epoch()]
	s.mu.Unlock()
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.owned
}

// Status is how an endpoint's report does.
type Status struct {
	Endpoint endpoint.Endpoint
	cachesync.Status
}

// Status reports on all targets of a pool, in no order.
func (s *Server) Status(pool string) []Status {
	s.mu.Lock()
	targets := make([]*target, 0, len(s.pools[pool]))
	for _, t := range s.pools[pool] {
		targets = append(targets, t)
	}
	s.mu.Unlock()
	out := make([]Status, 0, len(targets))
	now := s.options.Now()
	for _, t := range targets {
		status := t.receiver.Status()
		if now.Sub(status.LastProof) > proofDigests*s.options.Digest {
			status.Proven = false // the reporter is silent, and its stream has not ended yet
		}
		out = append(out, Status{t.Endpoint, status})
	}
	return out
}

// Refused counts the streams that were not taken.
func (s *Server) Refused() Refused {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

func (s *Server) refuse(count func(*Refused) *uint64, code codes.Code, format string, args ...any) error {
	err := status.Errorf(code, format, args...)
	now := s.options.Now()
	s.mu.Lock()
	*count(&s.refused)++
	last := s.logged[code]
	if last == nil {
		last = &loggedRefusal{}
		s.logged[code] = last
	}
	loud, skipped := last.at.IsZero() || now.Sub(last.at) >= refusalLogPause, last.skipped
	if loud {
		*last = loggedRefusal{at: now}
	} else {
		last.skipped++
	}
	s.mu.Unlock()
	if loud {
		logging.Warn(s.options.Log, "Report refused", "reason", err.Error(), "suppressed", skipped)
	} else {
		s.options.Log.V(1).Info("Report refused", "reason", err.Error())
	}
	return err
}
