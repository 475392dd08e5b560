package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// gateway is a client like Envoy's: some connections, a stream for each request.
type gateway struct{ connections []*grpc.ClientConn }

func dial(address string, encrypted bool, connections int) (*gateway, error) {
	transport := insecure.NewCredentials()
	if encrypted {
		transport = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) // as gateways do
	}
	g := &gateway{}
	for range connections {
		c, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(transport))
		if err != nil {
			return nil, err
		}
		g.connections = append(g.connections, c)
	}
	return g, nil
}

func (g *gateway) close() {
	for _, c := range g.connections {
		_ = c.Close()
	}
}

func headers(pairs ...string) *core.HeaderMap {
	m := &core.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &core.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

// requestHead is the first message about a request.
func requestHead(length int) *pb.ProcessingRequest {
	duplex := filter.ProcessingMode_FULL_DUPLEX_STREAMED
	return &pb.ProcessingRequest{
		Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: headers(
			":method", "POST", ":path", "/v1/chat/completions", ":authority", "llm.example.com", ":scheme", "https",
			"user-agent", "OpenAI/Python 1.50.0", "accept", "application/json", "content-type", "application/json",
			"authorization", "Bearer sk-0123456789abcdef0123456789abcdef", "content-length", fmt.Sprint(length),
			"x-forwarded-for", "10.0.0.1", "x-forwarded-proto", "https", "x-request-id", "8a6e0804-2bd0-4672-b79d-d97027f9071a",
		)}},
		ProtocolConfig: &pb.ProtocolConfiguration{RequestBodyMode: duplex, ResponseBodyMode: duplex},
	}
}

func bodyPiece(piece []byte, end bool) *pb.ProcessingRequest {
	return &pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: piece, EndOfStream: end}}}
}

func answerHead() *pb.ProcessingRequest {
	return &pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseHeaders{ResponseHeaders: &pb.HttpHeaders{
		Headers: headers(":status", "200", "content-type", "text/event-stream"),
	}}}
}

func answerPiece(piece []byte, end bool) *pb.ProcessingRequest {
	return &pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseBody{ResponseBody: &pb.HttpBody{Body: piece, EndOfStream: end}}}
}

// event of an answer.
var event = []byte("data: {\"id\":\"cmpl-0123456789\",\"choices\":[{\"delta\":{\"content\":\" word\"}}]}\n\n")

// route sends a request like Envoy and waits until it is routed and its body is back. It gives the time to the
// destination.
func (g *gateway) route(ctx context.Context, i int, body []byte) (pb.ExternalProcessor_ProcessClient, time.Duration, error) {
	start := time.Now()
	s, err := pb.NewExternalProcessorClient(g.connections[i%len(g.connections)]).Process(ctx)
	if err != nil {
		return nil, 0, err
	}
	if err := s.Send(requestHead(len(body))); err != nil {
		return nil, 0, err
	}
	for rest := body; len(rest) > 0; {
		n := min(len(rest), 65536)
		if err := s.Send(bodyPiece(rest[:n], n == len(rest))); err != nil {
			return nil, 0, err
		}
		rest = rest[n:]
	}
	m, err := s.Recv()
	if err != nil {
		return nil, 0, err
	}
	took := time.Since(start)
	if m.GetRequestHeaders() == nil {
		return nil, 0, fmt.Errorf("refused: %v", m.GetImmediateResponse())
	}
	for end := false; !end; {
		if m, err = s.Recv(); err != nil {
			return nil, 0, err
		}
		end = m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream()
	}
	return s, took, nil
}

// answer sends an answer in pieces, and returns the time that each took to return.
func answer(s pb.ExternalProcessor_ProcessClient, pieces int, pause time.Duration) ([]time.Duration, error) {
	if err := s.Send(answerHead()); err != nil {
		return nil, err
	}
	if _, err := s.Recv(); err != nil {
		return nil, err
	}
	var took []time.Duration
	for i := range pieces {
		start := time.Now()
		if err := s.Send(answerPiece(event, i == pieces-1)); err != nil {
			return nil, err
		}
		if _, err := s.Recv(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
		time.Sleep(pause)
	}
	return took, nil
}

// prompts measures requests of each size at their rate, with a short answer.
func (b *bench) prompts() error {
	p, err := b.child("serve")
	if err != nil {
		return err
	}
	defer p.stop()
	other, err := b.child("reverse")
	if err != nil {
		return err
	}
	defer other.stop()
	for _, s := range sizes {
		best := row{Row: s.name, Unit: "ms CPU per request", Limit: s.limit}
		echo := 0.0
		for range 3 { // the least disturbed of three, turn by turn
			r, err := b.rate(p, p.addresses[0], s)
			if err != nil {
				return err
			}
			if best.Beside == nil || r.Value < best.Value {
				best.Value, best.Beside = r.Value, r.Beside
			}
			if r, err = b.rate(other, other.addresses[1], s); err != nil {
				return err
			}
			if echo == 0 || r.Value < echo {
				echo = r.Value
			}
		}
		best.Beside["echoMsCPU"] = echo
		b.record(best)
	}
	return nil
}

func (b *bench) rate(p *process, address string, s size) (*row, error) {
	g, err := dial(address, true, 4)
	if err != nil {
		return nil, err
	}
	defer g.close()
	chats := conversations(s)
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var wait sync.WaitGroup
	const atOnce = 128 // beyond it the rate falls, rather than a queue grow
	room := make(chan bool, atOnce)
	one := func(i int, body []byte) {
		defer func() { <-room; wait.Done() }()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel() // resets the stream, as Envoy does at the end
		stream, t, err := g.route(ctx, i, body)
		if err == nil {
			_, err = answer(stream, 2, 0)
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, t)
		if failed == nil {
			failed = err
		}
	}
	for i := range 100 { // connect, and get warm
		wait.Add(1)
		room <- true
		one(i, chats[i%len(chats)].turn(-i-1+1<<20))
	}
	took = nil
	n := max(40, int(b.length.Seconds()*float64(s.rate)))
	if b.profile != "" {
		go p.profileTo(b.profile, b.length)
		b.profile = ""
	}
	start, before := time.Now(), p.cpu()
	for i := range n {
		body := chats[i%len(chats)].turn(i)
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(s.rate))))
		wait.Add(1)
		room <- true
		go one(i, body)
	}
	wait.Wait()
	used, clock := p.cpu()-before, time.Since(start)
	if failed != nil {
		return nil, failed
	}
	slices.Sort(took)
	return &row{Value: used.Seconds() * 1000 / float64(n), Beside: map[string]float64{
		"bytes": float64(len(chats[0].body)), "requests": float64(n), "perSecond": float64(n) / clock.Seconds(),
		"p50ms": ms(took[len(took)/2]), "p99ms": ms(took[len(took)*99/100]),
	}}, nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// open measures many streams at once: the memory of a picker that has them, and what is left of it afterwards.
func (b *bench) open() error {
	const streams, connections = 10_000, 20
	p, err := b.child("serve")
	if err != nil {
		return err
	}
	defer p.stop()
	before, err := p.stats()
	if err != nil {
		return err
	}
	empty := p.memory()
	g, err := dial(p.addresses[0], true, connections)
	if err != nil {
		return err
	}
	defer g.close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	chats := conversations(sizes[1])
	var mu sync.Mutex
	var failed error
	var wait sync.WaitGroup
	for worker := range 32 {
		wait.Go(func() {
			for i := worker; i < streams; i += 32 {
				s, _, err := g.route(ctx, i, chats[i%len(chats)].turn(i))
				if err == nil {
					err = begin(s)
				}
				if err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	wait.Wait()
	if failed != nil {
		return failed
	}
	peak := p.memory()
	held, err := p.stats()
	if err != nil {
		return err
	}
	full := p.memory()
	cancel()
	after, err := p.settled()
	if err != nil {
		return err
	}
	beside := map[string]float64{
		"streams": float64(held["streams"]), "MBbeforeCollection": float64(peak) / 1e6, "MBbefore": float64(empty) / 1e6,
		"goroutinesOpen":   float64(held["goroutines"]),
		"goroutinesBefore": float64(before["goroutines"]), "goroutinesAfter": float64(after["goroutines"]),
		"inflightAfter": float64(after["inflight"]),
	}
	b.record(row{Row: "10,000 streaming responses open", Value: float64(full) / 1e6, Unit: "MB resident", Limit: 500, Beside: beside})
	return nil
}

// begin shows the beginning of an answer.
func begin(s pb.ExternalProcessor_ProcessClient) error {
	if err := s.Send(answerHead()); err != nil {
		return err
	}
	if _, err := s.Recv(); err != nil {
		return err
	}
	if err := s.Send(answerPiece(event, false)); err != nil {
		return err
	}
	_, err := s.Recv()
	return err
}

// settled waits until all streams have ended.
func (p *process) settled() (map[string]int, error) {
	for range 100 {
		s, err := p.stats()
		if err != nil || s["streams"] == 0 && s["inflight"] == 0 {
			return s, err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return p.stats()
}
