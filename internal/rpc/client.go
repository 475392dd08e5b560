package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/fault"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// readBuffer of a connection, in bytes.
const readBuffer = 8 << 10

// DialOptions of a Client. The zero value is plain text without a token.
type DialOptions struct {
	// Credentials of the transport; nil is plain text.
	Credentials credentials.TransportCredentials
	// Token returns the reporter's proof of identity, before each stream; nil for none.
	Token func() ([]byte, error)
	// TokenInClear allows the token without TLS.
	TokenInClear bool
}

// Client is a connection to one picker. It is safe for concurrent use.
type Client struct {
	conn    *grpc.ClientConn
	refused atomic.Bool // by the last attempt to connect
}

// Dial makes a client of the picker at host:port. It connects when it is used.
func Dial(addr string, o DialOptions) (*Client, error) {
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	c := &Client{}
	options := []grpc.DialOption{
		grpc.WithContextDialer(c.dial),
		grpc.WithTransportCredentials(o.Credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.ForceCodecV2(newCodec())),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, Jitter: 0.5, MaxDelay: time.Second},
			MinConnectTimeout: handshakeTimeout,
		}),
		grpc.WithDisableServiceConfig(),
		// The operator has hundreds of connections that are idle except for some KiB a second.
		grpc.WithReadBufferSize(readBuffer),
	}
	if o.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(tokenCall{o.Token, o.TokenInClear}))
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, options...)
	if err != nil {
		return nil, fmt.Errorf("dialling picker %s: %w", addr, err)
	}
	c.conn = conn
	return c, nil
}

func (c *Client) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	c.refused.Store(errors.Is(err, syscall.ECONNREFUSED))
	return conn, err
}

// Refused reports whether nothing listened at the address at the last attempt to connect.
func (c *Client) Refused() bool { return c.refused.Load() }

// Close ends the connection and all its streams.
func (c *Client) Close() error { return c.conn.Close() }

// Push opens a stream and lets a sender send over it until ctx ends or it breaks. changed must hold a token after the
// mirror has changed. The sender cannot be used afterwards. The error is never nil; a panic ends the stream and is a
// *fault.Panic.
func (c *Client) Push(ctx context.Context, sender *cachesync.Sender, changed <-chan struct{}) error {
	return caught("reporting", func() error { return c.push(ctx, sender, changed) })
}

func (c *Client) push(ctx context.Context, sender *cachesync.Sender, changed <-chan struct{}) error {
	defer sender.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := NewReportClient(c.conn).Push(ctx)
	if err != nil {
		return fmt.Errorf("opening the stream: %w", err)
	}
	ended := make(chan error, 1)
	received := make(chan struct{}, 1)
	go func() {
		ended <- caught("reading a message of the picker", func() error { return receive(stream, sender, received) })
	}()
	err = caught("making a report", func() error { return speak(ctx, stream, sender, changed, received, ended) })
	cancel()
	if received := <-ended; err == nil || errors.Is(err, io.EOF) {
		err = received // the stream has ended, or ctx: the reason is in what was received
	}
	if err == nil {
		err = io.EOF
	}
	return err
}

// caught calls f, and returns a panic that has ended it as an error.
func caught(doing string, f func() error) (err error) {
	if p := fault.Catch(func() { err = f() }, func(*fault.Panic) {}); p != nil {
		return fmt.Errorf("%s: %w", doing, p)
	}
	return err
}

// receive passes received messages to the sender.
func receive(
	stream grpc.BidiStreamingClient[pb.ReporterMessage, pb.PickerMessage], sender *cachesync.Sender, received chan<- struct{},
) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := sender.Handle(m); err != nil {
			return err
		}
		select {
		case received <- struct{}{}:
		default:
		}
	}
}

// speak sends the pending messages. It returns nil when the stream has ended otherwise.
func speak(ctx context.Context, stream grpc.BidiStreamingClient[pb.ReporterMessage, pb.PickerMessage], sender *cachesync.Sender, changed,
	received <-chan struct{}, ended chan error) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		out, wake := sender.Next(time.Now())
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(time.Until(wake))
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			ended <- err
			return nil
		case <-changed:
		case <-received:
		case <-timer.C:
		}
	}
}
