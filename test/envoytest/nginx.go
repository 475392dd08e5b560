package envoytest

import (
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// Nginx is a stand-in for the client that NGINX Gateway Fabric runs beside NGINX: a connection per request, headers as text
// and without pseudo headers, the entire body in one message, its own side closed right after, then reading to the end for
// one header. It never sends an answer, and treats every refusal as the absence of an endpoint.
type Nginx struct {
	Picker string
	Dial   []grpc.DialOption
	// FailOpen sends a request without a destination to one of Endpoints.
	FailOpen  bool
	Endpoints []string
}

// ServeHTTP takes a request to the endpoint that the picker names.
func (n *Nginx) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	address := n.ask(r, body)
	if address == "" && n.FailOpen {
		address = n.Endpoints[rand.IntN(len(n.Endpoints))]
	}
	if address == "" || strings.Contains(address, ",") { // "invalid port in upstream"
		http.Error(w, "no endpoint", http.StatusInternalServerError)
		return
	}
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(body))), int64(len(body))
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address})
	proxy.FlushInterval = -1
	proxy.ServeHTTP(w, r)
}

// Shim is the program beside a real NGINX, whose script requests the endpoint of a request from it: it answers with a
// header that names one, or with 503.
func (n *Nginx) Shim() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		address := n.ask(r, body)
		if address == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set(destinationHeader, address)
	})
}

// ask asks the picker; empty when it names no endpoint.
func (n *Nginx) ask(r *http.Request, body []byte) string {
	c, err := grpc.NewClient("passthrough:///"+n.Picker, n.Dial...)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	stream, err := pb.NewExternalProcessorClient(c).Process(r.Context())
	if err != nil {
		return ""
	}
	m := &core.HeaderMap{}
	for name, values := range r.Header {
		m.Headers = append(m.Headers, &core.HeaderValue{Key: strings.ToLower(name), Value: values[0]})
	}
	if stream.Send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: m}}}) != nil ||
		stream.Send(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: body, EndOfStream: true}}}) != nil ||
		stream.CloseSend() != nil {
		return ""
	}
	address := ""
	for {
		m, err := stream.Recv()
		if err != nil {
			return address
		}
		for _, o := range m.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
			if o.GetHeader().GetKey() == destinationHeader {
				address = string(o.GetHeader().GetRawValue())
			}
		}
	}
}
