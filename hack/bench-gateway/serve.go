package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	_ "net/http/pprof" // on the port of the statistics
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	limits "github.com/kvasir-dev/kvasir/internal/gateway/accept"
	"github.com/kvasir-dev/kvasir/internal/gateway/extproc"
	"github.com/kvasir-dev/kvasir/internal/gateway/httpproxy"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
	"github.com/kvasir-dev/kvasir/internal/kvindex"
	"github.com/kvasir-dev/kvasir/internal/openai"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/internal/tokens/chatprompt"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

const (
	modelName   = "Qwen/Qwen2.5-7B-Instruct"
	modelDir    = "internal/tokens/tokenizer/testdata/qwen2_5"
	cacheBytes  = 256 << 20
	endpoints   = 64
	holdersEach = 4 // endpoints that hold a conversation
)

// serve is the measured process: a picker with 64 endpoints, the default policy, a tokenizer whose cache knows the
// conversations, and an index that holds them; served to gateways over TLS, and as a proxy.
func serve(enginePort string) error {
	p, prompter, err := newPicker(enginePort)
	if err != nil {
		return err
	}
	if err := warm(p, prompter); err != nil {
		return err
	}
	var all [5]net.Listener
	for i := range all {
		if all[i], err = new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	config, err := extproc.TLS(certs.Files{}, []string{"localhost"}, time.Now())
	if err != nil {
		return err
	}
	gateways := extproc.New(extproc.Options{Picker: p, Log: logr.Discard()})
	proxy := httpproxy.New(httpproxy.Options{Picker: p, Log: logr.Discard()})
	fmt.Println(all[0].Addr(), all[1].Addr(), all[2].Addr(), all[3].Addr(), all[4].Addr())
	failed := make(chan error, 5)
	ctx := context.Background()
	go func() { failed <- gateways.Serve(ctx, all[0], extproc.ServeOptions{TLS: config}) }()
	go func() { failed <- gateways.Serve(ctx, all[1], extproc.ServeOptions{}) }()
	go func() { failed <- httpproxy.Serve(ctx, all[2], proxy, httpproxy.ServeOptions{}) }()
	forClients := &limits.Handshakes{Config: config.Clone()}
	forClients.Config.NextProtos = []string{"h2", "http/1.1"}
	go func() { failed <- httpproxy.Serve(ctx, all[4], proxy, httpproxy.ServeOptions{TLS: forClients}) }()
	go func() {
		http.DefaultServeMux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
			debug.FreeOSMemory()
			left := 0
			for _, s := range p.Stats() {
				for _, e := range s.Endpoints {
					left += e.Load.InFlight
				}
			}
			_ = json.NewEncoder(w).Encode(map[string]int{
				"goroutines": runtime.NumGoroutine(), "streams": int(gateways.Streams()), "inflight": left,
			})
		})
		failed <- http.Serve(all[3], nil)
	}()
	return <-failed
}

func newPicker(enginePort string) (*picker.Picker, *chatprompt.Prompter, error) {
	admitter, err := crdadmission.New()
	if err != nil {
		return nil, nil, err
	}
	defaults, err := admitter.DefaultPolicy()
	if err != nil {
		return nil, nil, err
	}
	policy, errs := config.Policy(defaults)
	if len(errs) > 0 {
		return nil, nil, errs.ToAggregate()
	}
	policy.TokenBudget = time.Second // so that a busy machine makes no request cheap
	spec := picker.Spec{
		Namespace: "default", Name: "bench", Model: modelName, Engine: "VLLM", NoEvents: true, BlockTokens: 16,
		MaxRequestBody: 64 << 20, Policy: policy,
	}
	for i := range endpoints {
		spec.Endpoints = append(spec.Endpoints, endpoint.Endpoint{
			ID: endpoint.ID{Pod: fmt.Sprint("uid-", i)}, Pod: fmt.Sprint("pod-", i), Namespace: "default",
			Address: fmt.Sprintf("127.0.1.%d:%s", i+1, enginePort), RankHeader: -1, Ready: true, Serving: true,
		})
	}
	p := picker.New(picker.Options{Log: logr.Discard()})
	if err := p.Apply([]picker.Spec{spec}); err != nil {
		return nil, nil, err
	}
	packed, err := os.Open(filepath.Join(modelDir, "tokenizer.json.gz"))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = packed.Close() }()
	plain, err := gzip.NewReader(packed)
	if err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(plain)
	if err != nil {
		return nil, nil, err
	}
	t, err := tokenizer.LoadReader(bytes.NewReader(text), nil)
	if err != nil {
		return nil, nil, err
	}
	chats, err := chatprompt.New(chatprompt.Options{Dir: modelDir, Release: "0.17.0", Encoder: t})
	if err != nil {
		return nil, nil, err
	}
	prompter := chatprompt.NewPrompter(t, tokenizer.NewCache(cacheBytes), chats, nil)
	p.SetExact("default", "bench", &picker.Exact{Texts: prompter, Chats: prompter})
	return p, prompter, nil
}

// warm shows the tokenizer all conversations, and lets endpoints hold them.
func warm(p *picker.Picker, prompter *chatprompt.Prompter) error {
	feeds := p.Feeds()
	n := 0
	for _, size := range sizes {
		for _, c := range conversations(size) {
			body := c.turn(0)
			var r openai.Request
			if err := openai.Parse(openai.ChatCompletions, body, &r); err != nil {
				return err
			}
			f := feeds[0]
			keys, tokens, err := prompter.AppendKeys(context.Background(), nil, body, &r,
				tokenizer.Chain{Root: f.Spec.Seed.Root(modelName, ""), BlockTokens: f.Spec.BlockTokens})
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%d bytes, %d tokens, %d blocks\n", len(body), tokens, len(keys))
			for range holdersEach {
				hold(feeds[n%len(feeds)], keys)
				n++
			}
		}
	}
	return nil
}

func hold(f picker.Feed, keys []kvblock.Key) {
	hashes := make([]kvevent.Hash, len(keys))
	for i, key := range keys {
		hashes[i] = kvevent.Hash(key)
	}
	f.Writer.Store(kvblock.GPU, 0, kvindex.Parent{}, hashes, keys)
}

// reverse is what the proxy is compared with.
func reverse(enginePort string) error {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.1.1:" + enginePort})
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	proxy.FlushInterval = -1
	var all [5]net.Listener
	for i := range all {
		var err error
		if all[i], err = new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	config, err := extproc.TLS(certs.Files{}, nil, time.Now())
	if err != nil {
		return err
	}
	for i, options := range [][]grpc.ServerOption{{grpc.Creds(credentials.NewTLS(config))}, nil} {
		server := grpc.NewServer(options...)
		pb.RegisterExternalProcessorServer(server, echo{destination: "127.0.1.1:" + enginePort})
		go func() { _ = server.Serve(all[1+i]) }()
	}
	go accept(all[3], func(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) })
	go accept(all[4], func(c net.Conn) { relay(c, "127.0.1.1:"+enginePort) })
	for _, l := range all {
		fmt.Print(l.Addr(), " ")
	}
	fmt.Println()
	return http.Serve(all[0], proxy)
}

// accept serves connections.
func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serve(c)
	}
}

// relay carries the bytes of a connection to an address and back, by reads and writes.
func relay(c net.Conn, address string) {
	there, err := net.Dial("tcp", address) //nolint:noctx // for the bench alone
	if err != nil {
		_ = c.Close()
		return
	}
	go func() { _, _ = io.Copy(struct{ io.Writer }{there}, struct{ io.Reader }{c}); _ = there.Close() }()
	_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{there})
	_ = c.Close()
}

// echo answers like a picker without a pick: the request's headers with a fixed destination and its body once that is
// complete, then every piece of an answer with itself. What gRPC alone costs, as its library is meant to be used.
type echo struct {
	pb.UnimplementedExternalProcessorServer
	destination string
}

// Process implements pb.ExternalProcessorServer.
func (e echo) Process(stream pb.ExternalProcessor_ProcessServer) error {
	var body []byte
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		answer := &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseHeaders{ResponseHeaders: &pb.HeadersResponse{}}}
		switch r := m.GetRequest().(type) {
		case *pb.ProcessingRequest_RequestHeaders:
			continue
		case *pb.ProcessingRequest_RequestBody:
			body = append(body, r.RequestBody.GetBody()...)
			if r.RequestBody.GetEndOfStream() {
				if err := routed(stream, e.destination, body); err != nil {
					return err
				}
			}
			continue
		case *pb.ProcessingRequest_ResponseBody:
			answer.Response = &pb.ProcessingResponse_ResponseBody{ResponseBody: &pb.BodyResponse{
				Response: streamed(r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream()),
			}}
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// routed answers to a request that is complete.
func routed(stream pb.ExternalProcessor_ProcessServer, destination string, body []byte) error {
	err := stream.Send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{
		Response: &pb.CommonResponse{HeaderMutation: &pb.HeaderMutation{SetHeaders: []*core.HeaderValueOption{{
			Header: &core.HeaderValue{Key: "x-gateway-destination-endpoint", RawValue: []byte(destination)},
		}}}},
	}}})
	for err == nil && len(body) > 0 {
		n := min(len(body), 62000)
		err = stream.Send(&pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{
			Response: streamed(body[:n], n == len(body)),
		}}})
		body = body[n:]
	}
	return err
}

func streamed(body []byte, end bool) *pb.CommonResponse {
	return &pb.CommonResponse{BodyMutation: &pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{
		StreamedResponse: &pb.StreamedBodyResponse{Body: body, EndOfStream: end},
	}}}
}
