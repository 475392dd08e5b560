package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/kvasir-dev/kvasir/internal/peerpb"
	"github.com/kvasir-dev/kvasir/internal/reportpb"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// framed is a connection of HTTP/2.
type framed struct {
	*http2.Framer
	end    func()
	header bytes.Buffer
	coder  *hpack.Encoder
	gone   chan struct{} // closed when the server has ended the connection
}

func (a *army) framed(ctx context.Context, address string, worker int) *framed {
	c, end := a.dial(ctx, address, worker)
	if c == nil {
		return nil
	}
	f := &framed{Framer: http2.NewFramer(c, c), end: end, gone: make(chan struct{})}
	f.coder = hpack.NewEncoder(&f.header)
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	go func() { // reads, so that only answers are held back
		defer close(f.gone)
		reader := http2.NewFramer(c, c)
		for {
			if _, err := reader.ReadFrame(); err != nil {
				return
			}
		}
	}()
	return f
}

// request begins a stream.
func (f *framed) request(id uint32, method, path string, last bool) error {
	f.header.Reset()
	for _, h := range [][2]string{{":method", method}, {":scheme", "http"}, {":path", path}, {":authority", "localhost"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = f.coder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.header.Bytes(), EndHeaders: true, EndStream: last})
}

// resets opens streams and resets each at once.
func (a *army) resets(ctx context.Context, address, path string) {
	f := a.framed(ctx, address, 0)
	if f == nil {
		return
	}
	defer f.end()
	for id := uint32(1); ctx.Err() == nil && id < 1<<20; id += 2 {
		if f.request(id, "POST", path, false) != nil || f.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			return
		}
		if id%256 == 1 {
			pause(ctx, 10*time.Millisecond)
		}
	}
}

// hold keeps the connection for a time, unless the server ends it.
func (f *framed) hold(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-f.gone:
		pause(ctx, 200*time.Millisecond)
	case <-time.After(d):
	}
}

// pagesNotRead requests pages on many streams and grants no window for them.
func (a *army) pagesNotRead(ctx context.Context, worker int) {
	f := a.framed(ctx, a.at.Metrics, worker)
	if f == nil {
		return
	}
	defer f.end()
	for id := uint32(1); id < 256; id += 2 {
		if f.request(id, "GET", []string{"/status", "/metrics", "/", "/decisions"}[id/2%4], true) != nil {
			return
		}
	}
	f.hold(ctx, 10*time.Second)
}

// incompleteReports announces large messages to the port of reports on many streams, and sends all but their ends.
func (a *army) incompleteReports(ctx context.Context, worker int) {
	f := a.framed(ctx, a.at.Reports, worker)
	if f == nil {
		return
	}
	defer f.end()
	prefix := binary.BigEndian.AppendUint32([]byte{0}, 4<<20-1)
	piece := make([]byte, 16<<10)
	for id := uint32(1); id < 400; id += 2 {
		if f.request(id, "POST", inFlightMethod, false) != nil || f.WriteData(id, false, prefix) != nil {
			return
		}
	}
	for round := 0; ctx.Err() == nil && round < 200; round++ { // past what flow control allows the server ends the connection
		for id := uint32(1); id < 400; id += 2 {
			if round < 4 && f.WriteData(id, false, piece) != nil {
				return
			}
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// plain is a gRPC connection.
func plain(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func headers(key, path string) *extproc.ProcessingRequest {
	list := &core.HeaderMap{}
	for name, value := range map[string]string{":method": "POST", ":path": path, ":authority": "x",
		"authorization": "Bearer " + key, "x-request-id": fmt.Sprint(rand.Uint64())} {
		list.Headers = append(list.Headers, &core.HeaderValue{Key: name, RawValue: []byte(value)})
	}
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: list}}}
}

func bodyPiece(b []byte, last bool) *extproc.ProcessingRequest {
	body := &extproc.HttpBody{Body: b, EndOfStream: last}
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: body}}
}

// heldStreams opens many streams of a gateway and never completes their bodies.
func (a *army) heldStreams(ctx context.Context, _ int) {
	c, err := plain(a.at.ExtProc)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for range 300 {
		s, err := extproc.NewExternalProcessorClient(c).Process(ctx)
		if err != nil {
			return
		}
		_ = s.Send(headers(badKey, "/v1/chat/completions"))
		_ = s.Send(bodyPiece(a.junk[:48<<10], false))
	}
	<-ctx.Done()
}

// hugeMessages sends bodies of nearly the largest size through a gateway, in one message.
func (a *army) hugeMessages(ctx context.Context, _ int) {
	a.byGateway(ctx, hugePrompt{"/v1/chat/completions", a.junk})
}

// hugeGatewayPrompt sends an expensive prompt through a gateway.
func (a *army) hugeGatewayPrompt(ctx context.Context, _ int) {
	a.byGateway(ctx, a.prompts[rand.IntN(len(a.prompts))])
}

// byGateway sends a request through a gateway, its body in one message.
func (a *army) byGateway(ctx context.Context, p hugePrompt) {
	c, err := plain(a.at.ExtProc)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := extproc.NewExternalProcessorClient(c).Process(ctx)
	if err != nil {
		return
	}
	_ = s.Send(headers(badKey, p.path))
	_ = s.Send(bodyPiece(p.body, true))
	for err == nil {
		_, err = s.Recv()
	}
	pause(ctx, 300*time.Millisecond)
}

func authorized(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
}

// falseReports is a reporter that reports endless blocks.
func (a *army) falseReports(ctx context.Context, _ int) {
	c, err := plain(a.at.Reports)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	s, err := rpc.NewReportClient(c).Push(authorized(ctx))
	if err != nil {
		return
	}
	_ = s.Send(&reportpb.ReporterMessage{Kind: &reportpb.ReporterMessage_Hello{Hello: &reportpb.Hello{Protocol: 1, Pod: "uid-3"}}})
	m, err := s.Recv()
	if err != nil || len(m.GetWelcome().GetRoots()) == 0 {
		pause(ctx, time.Second)
		return
	}
	at := &reportpb.Position{Epoch: 1 + rand.Uint64(), KeyId: m.GetWelcome().GetRoots()[0].GetId(), Log: 1 + rand.Uint64()}
	begin := &reportpb.Begin{Mode: reportpb.Begin_MODE_REPLACE, At: at, State: reportpb.State_STATE_SYNCED}
	err = s.Send(&reportpb.ReporterMessage{Kind: &reportpb.ReporterMessage_Begin{Begin: begin}})
	for part := uint32(0); err == nil; part++ {
		keys := make([]uint64, 20_000)
		for i := range keys {
			keys[i] = rand.Uint64()
		}
		err = s.Send(&reportpb.ReporterMessage{Kind: &reportpb.ReporterMessage_Snapshot{Snapshot: &reportpb.Snapshot{Part: part,
			Changes: []*reportpb.Change{{Kind: reportpb.Change_KIND_STORED, Keys: keys}}}}})
		pause(ctx, 10*time.Millisecond)
	}
}

// falsePeers are replicas that announce assumptions without end: those of worker 0 and 1 have the secret, the others do not.
func (a *army) falsePeers(ctx context.Context, worker int) {
	c, err := plain(a.at.Reports)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	if worker < 2 {
		ctx = authorized(ctx)
	}
	s, err := rpc.NewPeerClient(c).Exchange(ctx)
	if err != nil {
		return
	}
	_ = s.Send(&peerpb.PeerMessage{Kind: &peerpb.PeerMessage_Hello{Hello: &peerpb.Hello{Protocol: 1, Incarnation: rand.Uint64() | 1}}})
	if _, err := s.Recv(); err != nil {
		pause(ctx, time.Second)
		return
	}
	for seq := uint64(1); err == nil; seq++ {
		keys := make([]uint64, 20_000)
		for i := range keys {
			keys[i] = rand.Uint64()
		}
		err = s.Send(&peerpb.PeerMessage{Kind: &peerpb.PeerMessage_Update{Update: &peerpb.Update{Seq: seq, Assumptions: []*peerpb.Assumption{
			{Id: seq, Pool: "default/m", Pod: "uid-1", BlockTokens: 16, Keys: keys, LifeMilliseconds: 60_000}}}}})
		pause(ctx, 20*time.Millisecond)
	}
}

// explain asks for explanations of huge requests.
func (a *army) explain(ctx context.Context, _ int) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.at.Metrics+"/explain", bytes.NewReader(a.junk))
	if err != nil {
		return
	}
	r.Header.Set("Content-Type", "application/json")
	if resp, err := http.DefaultClient.Do(r); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	pause(ctx, 300*time.Millisecond)
}

// watchHealth holds watches of the health.
func (a *army) watchHealth(ctx context.Context, worker int) {
	f := a.framed(ctx, a.at.Health, worker)
	if f == nil {
		return
	}
	defer f.end()
	for id := uint32(1); id < 256; id += 2 {
		if f.request(id, "POST", "/grpc.health.v1.Health/Watch", false) != nil || f.WriteData(id, true, make([]byte, 5)) != nil {
			return
		}
	}
	f.hold(ctx, 5*time.Second)
}
