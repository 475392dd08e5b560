// Package redisstore keeps answers in Redis, so that replicas share them. The server is not trusted: it gets sealed values under names that
// say nothing, and what it returns is used only if it was sealed by a picker of the pool.
package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"

	"github.com/kvasir-dev/kvasir/internal/callout"
	"github.com/kvasir-dev/kvasir/internal/hosts"
	"github.com/kvasir-dev/kvasir/internal/respcache"
)

const (
	// connections to the server, at most.
	connections = 16
	// maxAsking is how many questions are under way at most.
	maxAsking = 64
	// maxQueued bounds the answers that wait to be written: their number, and their bytes.
	maxQueued, maxQueuedBytes = 256, 8 << 20
	// writeTimeout of an answer.
	writeTimeout = time.Second
)

var (
	errTLS    = errors.New("TLS with the server")
	errBusy   = fmt.Errorf("%w: %d questions are under way, which is the limit", respcache.ErrNotCalled, maxAsking)
	errPaused = fmt.Errorf("%w: it has failed %d times in a row, and is left alone for %v", respcache.ErrNotCalled, callout.EnoughFailures, callout.Pause)
)

func init() { redis.SetLogger(silent{}) }

// silent drops what the library logs: each failure is counted, and its cause is in the state of the cache.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Store keeps the answers of one pool. Make it with Open.
type Store struct {
	client   *redis.Client
	sealer   *sealer
	timeout  time.Duration
	now      func() time.Time
	counters *respcache.Counters
	log      logr.Logger

	queue  chan queued
	bytes  atomic.Int64 // in queue
	asking atomic.Int64
	end    context.CancelFunc
	writer sync.WaitGroup

	breaker callout.Breaker
}

// queued is an answer that waits to be written.
type queued struct {
	key    respcache.Key
	answer *respcache.Answer
	until  time.Time
}

// Open returns the store on a server, which is connected to when it is used. root is the secret of the pool's keys: pickers with another
// root share nothing. Close it.
func Open(r *respcache.Redis, root [32]byte, counters *respcache.Counters, now func() time.Time, log logr.Logger) (*Store, error) {
	sealer, err := newSealer(root, r.Origin, r.Prefix)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: writeTimeout, Control: hosts.Control}
	secure, err := tlsOf(r)
	if err != nil {
		return nil, err
	}
	s := &Store{
		sealer: sealer, timeout: r.Timeout, now: now, counters: counters, log: log, queue: make(chan queued, maxQueued),
		client: redis.NewClient(&redis.Options{
			Addr: r.Address, Username: r.Username, Password: r.Password, Protocol: 2, DisableIdentity: true,
			PoolSize: connections, MaxActiveConns: connections, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
			DialTimeout: writeTimeout, ReadTimeout: writeTimeout, WriteTimeout: writeTimeout, PoolTimeout: writeTimeout,
			Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dialer.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				if secure != nil {
					if conn, err = handshake(ctx, conn, secure); err != nil {
						return nil, err
					}
				}
				return &guarded{Conn: conn, most: maxValue}, nil
			},
		}),
	}
	ctx, end := context.WithCancel(context.Background())
	s.end = end
	s.writer.Go(func() { s.write(ctx) })
	return s, nil
}

// tlsOf is how the server is connected to; nil without TLS.
func tlsOf(r *respcache.Redis) (*tls.Config, error) {
	if !r.TLS {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(r.Address)
	if err != nil {
		return nil, fmt.Errorf("the address of Redis: %w", err)
	}
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if r.CA != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(r.CA)) {
			return nil, errors.New("the authorities of Redis have no certificate")
		}
	}
	return c, nil
}

// handshake opens TLS on a connection.
func handshake(ctx context.Context, conn net.Conn, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	return secure, nil
}

// Close ends the store. Answers that wait to be written are dropped.
func (s *Store) Close() {
	s.end()
	_ = s.client.Close()
	s.writer.Wait()
}

// Get implements respcache.Store. It returns when its time is over, whatever the library waits for.
func (s *Store) Get(ctx context.Context, key respcache.Key) (*respcache.Answer, error) {
	if s.asking.Add(1) > maxAsking {
		s.asking.Add(-1)
		return nil, errBusy
	}
	if !s.breaker.Allow(s.now()) {
		s.asking.Add(-1)
		return nil, errPaused
	}
	name := s.sealer.name(key)
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	type reply struct {
		value []byte
		err   error
	}
	replies := make(chan reply, 1)
	go func() {
		defer s.asking.Add(-1)
		value, err := s.client.Get(limited, name).Bytes()
		replies <- reply{value, plain(err)}
	}()
	var r reply
	select {
	case r = <-replies:
	case <-limited.Done():
		r.err = limited.Err()
	}
	if errors.Is(r.err, redis.Nil) {
		s.ended(nil, false)
		return nil, nil
	}
	if r.err != nil && ctx.Err() == nil && limited.Err() != nil {
		r.err = fmt.Errorf("the server has not answered within %v", s.timeout)
	}
	if s.ended(r.err, ctx.Err() != nil); r.err != nil {
		return nil, r.err
	}
	return s.sealer.open(name, r.value)
}

// Put implements respcache.Store.
func (s *Store) Put(key respcache.Key, a *respcache.Answer, life time.Duration) {
	if n := int64(len(a.Body)); s.bytes.Add(n) <= maxQueuedBytes {
		select {
		case s.queue <- queued{key, a, a.Stored.Add(life)}:
			return
		default:
		}
	}
	s.bytes.Add(-int64(len(a.Body)))
	s.counters.CountStorage(s.now(), respcache.StoreDropped, "")
}

// write writes what is queued, until its context ends.
func (s *Store) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-s.queue:
			s.put(ctx, &q)
			s.bytes.Add(-int64(len(q.answer.Body)))
		}
	}
}

// put writes an answer, which the server forgets when its time is over.
func (s *Store) put(ctx context.Context, q *queued) {
	name := s.sealer.name(q.key)
	life := q.until.Sub(s.now())
	value, ok := s.sealer.seal(name, q.answer)
	if !ok || life < time.Millisecond {
		return
	}
	if !s.breaker.Allow(s.now()) {
		s.counters.CountStorage(s.now(), respcache.StoreNotCalled, errPaused.Error())
		return
	}
	limited, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := plain(s.client.Set(limited, name, value, life).Err())
	var refused refusal
	s.ended(err, ctx.Err() != nil || errors.As(err, &refused)) // one that refuses answers, as when it is full, can still be asked
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.counters.CountStorage(s.now(), respcache.StoreWriteFailed, err.Error())
	default:
		s.counters.CountStorage(s.now(), respcache.StoreWritten, "")
	}
}

// refusal is the error of a server, by the first word of its text: the rest can repeat what the server was sent, even the password.
type refusal string

func (r refusal) Error() string { return "the server refuses: " + string(r) }

// plain is an error without anything that the server was sent or has sent.
func plain(err error) error {
	var refused redis.Error
	var network net.Error
	switch {
	case err == nil, errors.Is(err, redis.Nil), errors.Is(err, errHuge), errors.Is(err, errTLS), errors.Is(err, context.Canceled),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF), errors.As(err, &network):
		return err
	case errors.As(err, &refused):
		word, _, _ := strings.Cut(refused.Error(), " ")
		if len(word) > 20 || strings.ContainsFunc(word, func(r rune) bool { return r < 'A' || r > 'Z' }) {
			word = "ERR"
		}
		return refusal(word)
	}
	return errors.New("the server's answer is not one of Redis, or the connection was closed")
}

// ended remembers what became of a question; nothing, if it says nothing of the server.
func (s *Store) ended(err error, nothing bool) {
	switch {
	case nothing:
	case err == nil:
		if s.breaker.Succeed() {
			s.log.Info("Redis answers again")
		}
	case s.breaker.Fail(s.now()):
		s.log.Error(err, "Redis has failed repeatedly", "failures", callout.EnoughFailures)
	}
}
