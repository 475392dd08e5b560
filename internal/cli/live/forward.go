package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Dial connects to a port of a pod.
type Dial func(ctx context.Context, pod types.NamespacedName, port int) (net.Conn, error)

// Forward connects as kubectl port-forward does, but without a listening socket that others on the machine could use:
// by the API server to the pod's own loopback address.
func Forward(config *rest.Config) (Dial, error) {
	core, err := coreClient(config)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, pod types.NamespacedName, port int) (net.Conn, error) {
		at := core.Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
		sockets, err := portforward.NewSPDYOverWebsocketDialerForStreaming(at, config)
		if err != nil {
			return nil, err
		}
		old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, at)
		dialer := portforward.NewFallbackDialerForStreaming(sockets, old, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		})
		return forward(ctx, dialer, pod, port)
	}, nil
}

// coreClient speaks to the API's core group. It is smaller in the program than the client with a method for each kind.
func coreClient(config *rest.Config) (*rest.RESTClient, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath, c.NegotiatedSerializer = &corev1.SchemeGroupVersion, "/api", scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	return client, nil
}

// forward connects in the background, as dialers know no context.
func forward(ctx context.Context, dialer httpstream.Dialer, pod types.NamespacedName, port int) (net.Conn, error) {
	type dialled struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialled, 1)
	go func() {
		c, err := open(dialer, port)
		done <- dialled{c, err}
	}()
	select {
	case d := <-done:
		if d.err != nil {
			return nil, fmt.Errorf("forwarding to the pod %s: %w", pod.Name, d.err)
		}
		return d.conn, nil
	case <-ctx.Done():
		go func() {
			if d := <-done; d.err == nil {
				_ = d.conn.Close() // the reader has gone
			}
		}()
		return nil, ctx.Err()
	}
}

func open(dialer httpstream.Dialer, port int) (net.Conn, error) {
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	header.Set(corev1.PortHeader, strconv.Itoa(port))
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	faults, err := conn.CreateStream(header)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := faults.Close(); err != nil { // nothing is written there
		return nil, errors.Join(err, conn.Close())
	}
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(header)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &stream{Stream: data, conn: conn}
	go func() {
		if text, err := io.ReadAll(io.LimitReader(faults, 4096)); err == nil && len(text) > 0 {
			why := errors.New(string(text))
			s.fault.Store(&why)
			_ = conn.Close() // the data ends then, and its reader gets the reason
		}
	}()
	return s, nil
}

// stream is a forwarded connection.
type stream struct {
	httpstream.Stream
	conn  httpstream.Connection
	fault atomic.Pointer[error]
}

// Read returns the kubelet's error in place of the end of the stream that it causes.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if why := s.fault.Load(); err != nil && why != nil {
		err = *why
	}
	return n, err
}

// Close ends the connection to the API server too.
func (s *stream) Close() error { return errors.Join(s.Reset(), s.conn.Close()) }

type address struct{}

func (address) Network() string { return "forward" }
func (address) String() string  { return "forward" }

// LocalAddr and RemoteAddr are required by net.Conn and not used.
func (s *stream) LocalAddr() net.Addr  { return address{} }
func (s *stream) RemoteAddr() net.Addr { return address{} }

// Deadlines are not kept: requests end with their contexts, which close the connection.
func (s *stream) SetDeadline(time.Time) error      { return nil }
func (s *stream) SetReadDeadline(time.Time) error  { return nil }
func (s *stream) SetWriteDeadline(time.Time) error { return nil }
