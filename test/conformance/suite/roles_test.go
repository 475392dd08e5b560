package suite

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"sigs.k8s.io/gateway-api-inference-extension/conformance/utils/headers"

	"github.com/kvasir-dev/kvasir/internal/certs"
)

// echo is the model server of the suite: it answers with what it was asked, in the form of the suite's echo server, but
// listens only at the pod's address. As an engine it also names its model.
func echo([]string) error {
	port, h2c := cmp.Or(os.Getenv("HTTP_PORT"), "3000"), cmp.Or(os.Getenv("H2C_PORT"), "3001")
	answer := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"conformance-fake-model","object":"model"}]}`)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"path": r.RequestURI, "host": r.Host, "method": r.Method, "proto": r.Proto, "headers": r.Header, "httpPort": port,
			"namespace": os.Getenv("NAMESPACE"), "pod": os.Getenv("POD_NAME"), "ingress": "", "service": "",
		})
	}
	listen := func(port string, h http.HandlerFunc) error {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		s := &http.Server{Addr: net.JoinHostPort(os.Getenv("POD_IP"), port), Handler: h, Protocols: protocols, ReadHeaderTimeout: time.Minute}
		return s.ListenAndServe()
	}
	failed := make(chan error)
	go func() { failed <- listen(port, answer) }()
	go func() {
		failed <- listen(h2c, func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				http.Error(w, "want HTTP/2", http.StatusBadRequest)
				return
			}
			answer(w, r)
		})
	}()
	return <-failed
}

// filter is the pod of a picker: Kvasir's, and before it what the suite's own picker has for tests. The header that
// selects endpoints becomes the gateway's subset, which is how pickers are restricted, and the endpoint that the gateway
// reports to the picker comes back in a header of the answer. All else passes as it is.
func filter(args []string) error {
	ip := os.Getenv("POD_IP")
	picker := exec.Command(os.Getenv("KVASIR_BIN")+"/picker", append(args, "--kubeconfig", os.Getenv("KUBECONFIG"),
		"--ext-proc-address", ip+":9102",
		"--ext-proc-plaintext", "--health-address", ip+":9003", "--metrics-address", ip+":9090", "--proxy-address", ip+":8080",
		"--log-level", "debug")...)
	picker.Stdout, picker.Stderr = os.Stdout, os.Stderr
	picker.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := picker.Start(); err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+ip+":9102", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", ip+":9002")
	if err != nil {
		return err
	}
	certificate, err := certs.SelfSigned([]string{"localhost"}, time.Now())
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(certificate)))
	extprocv3.RegisterExternalProcessorServer(server, &relay{to: extprocv3.NewExternalProcessorClient(conn)})
	go func() {
		_ = picker.Wait()
		server.Stop()
	}()
	return server.Serve(l)
}

// relay relays streams to the picker.
type relay struct {
	extprocv3.UnimplementedExternalProcessorServer
	to extprocv3.ExternalProcessorClient
}

func (r *relay) Process(gateway extprocv3.ExternalProcessor_ProcessServer) error {
	picker, err := r.to.Process(gateway.Context())
	if err != nil {
		return err
	}
	var served string
	var mu sync.Mutex // guards served
	go func() {
		for {
			m, err := gateway.Recv()
			if err != nil {
				_ = picker.CloseSend()
				return
			}
			if h := m.GetRequestHeaders(); h != nil {
				selectEndpoints(m, h)
			}
			if m.GetResponseHeaders() != nil {
				mu.Lock()
				served = servedBy(m)
				mu.Unlock()
			}
			if err := picker.Send(m); err != nil {
				return
			}
		}
	}()
	for {
		m, err := picker.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h, ok := m.GetResponse().(*extprocv3.ProcessingResponse_ResponseHeaders); ok {
			mu.Lock()
			tell(h, served)
			mu.Unlock()
		}
		if err := gateway.Send(m); err != nil {
			return err
		}
	}
}

func selectEndpoints(m *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) {
	for _, header := range h.GetHeaders().GetHeaders() {
		if header.GetKey() != headers.HeaderTestEppEndPointSelectionKey {
			continue
		}
		value := cmp.Or(string(header.GetRawValue()), header.GetValue())
		if m.MetadataContext == nil {
			m.MetadataContext = &corev3.Metadata{}
		}
		if m.MetadataContext.FilterMetadata == nil {
			m.MetadataContext.FilterMetadata = map[string]*structpb.Struct{}
		}
		m.MetadataContext.FilterMetadata["envoy.lb.subset_hint"] = &structpb.Struct{Fields: map[string]*structpb.Value{
			"x-gateway-destination-endpoint-subset": structpb.NewStringValue(value)}}
	}
}

func servedBy(m *extprocv3.ProcessingRequest) string {
	value, ok := m.GetMetadataContext().GetFilterMetadata()["envoy.lb"].GetFields()["x-gateway-destination-endpoint-served"]
	if !ok {
		return "none was reported"
	}
	return value.GetStringValue()
}

func tell(h *extprocv3.ProcessingResponse_ResponseHeaders, served string) {
	if h.ResponseHeaders == nil {
		h.ResponseHeaders = &extprocv3.HeadersResponse{}
	}
	if h.ResponseHeaders.Response == nil {
		h.ResponseHeaders.Response = &extprocv3.CommonResponse{}
	}
	c := h.ResponseHeaders.Response
	if c.HeaderMutation == nil {
		c.HeaderMutation = &extprocv3.HeaderMutation{}
	}
	c.HeaderMutation.SetHeaders = append(c.HeaderMutation.SetHeaders, &corev3.HeaderValueOption{
		Header: &corev3.HeaderValue{Key: headers.ConformanceTestResultHeader, RawValue: []byte(served)}})
}

// gateway is the pod of a Gateway: Envoy, which gets everything else from Istio.
func gateway([]string) error {
	ip, name, namespace := os.Getenv("POD_IP"), os.Getenv("POD_NAME"), os.Getenv("NAMESPACE")
	type object = map[string]any
	ads := object{"ads": object{}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
	config, err := json.Marshal(object{
		"node": object{"id": fmt.Sprintf("router~%s~%s.%s~%s.svc.cluster.local", ip, name, namespace, namespace),
			"cluster": name + "." + namespace,
			"metadata": object{"NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.0", "INSTANCE_IPS": ip,
				"LABELS": object{"gateway.networking.k8s.io/gateway-name": os.Getenv("GATEWAY")}}},
		"admin": object{"address": object{"socket_address": object{"address": ip, "port_value": 15000}}},
		"dynamic_resources": object{"lds_config": ads, "cds_config": ads, "ads_config": object{"api_type": "GRPC", "transport_api_version": "V3",
			"grpc_services": []any{object{"envoy_grpc": object{"cluster_name": "xds-grpc"}}}}},
		"static_resources": object{"clusters": []any{object{"name": "xds-grpc", "type": "STATIC", "connect_timeout": "5s",
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{}}}},
			"load_assignment": object{"cluster_name": "xds-grpc", "endpoints": []any{object{"lb_endpoints": []any{object{"endpoint": object{
				"address": object{"socket_address": object{"address": "127.0.0.1", "port_value": istiodPort}}}}}}}}}}},
	})
	if err != nil {
		return err
	}
	file := filepath.Join(os.Getenv("DIR"), name+".json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return err
	}
	envoy := filepath.Join(os.Getenv("KVASIR_BIN"), "envoy")
	return syscall.Exec(envoy, strings.Fields("envoy -c "+file+" --use-dynamic-base-id --concurrency 1 --log-level warning"), os.Environ())
}

// forward is a load balancer: what connects to an address reaches the pod behind it.
func forward(ctx context.Context, l net.Listener, to string) {
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = client.Close() }()
			pod, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer func() { _ = pod.Close() }()
			go func() {
				_, _ = io.Copy(pod, client)
				_ = pod.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(client, pod)
		}()
	}
}
