// Package envoyfront puts Envoy in front of a picker, for tests and measurements that need one route. The settings of the
// various gateways are in test/envoy.
package envoyfront

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// Program is the path of the Envoy that the tests pin. It is installed into the user's cache if it is not there.
func Program(ctx context.Context) (string, error) {
	_, file, _, _ := runtime.Caller(0)
	out, err := exec.CommandContext(ctx, filepath.Join(filepath.Dir(file), "..", "..", "hack", "envoy", "install.sh")).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("installing Envoy: %w: %s", err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("installing Envoy: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// object is a part of Envoy's configuration.
type object = map[string]any

func typed(kind string, fields object) object {
	fields["@type"] = "type.googleapis.com/envoy." + kind
	return fields
}

func socket(hostPort string) object {
	host, port, _ := net.SplitHostPort(hostPort)
	return object{"socket_address": object{"address": host, "port_value": json.Number(port)}}
}

func endpoints(name, address string) object {
	all := []object{{"endpoint": object{"address": socket(address)}}}
	return object{"cluster_name": name, "endpoints": []object{{"lb_endpoints": all}}}
}

// routes are what gateways make of the paths of the operator's route. All other paths are 404.
func routes() []object {
	var all []object
	for _, m := range resources.RouteMatches() {
		match := object{"path": *m.Path.Value}
		if *m.Path.Type == gwapiv1.PathMatchPathPrefix {
			match = object{"path_separated_prefix": *m.Path.Value}
		}
		all = append(all, object{"match": match, "route": object{"cluster": "pool", "timeout": "0s"}})
	}
	return all
}

// Config is the configuration of an Envoy with one listener. Requests for the paths of the operator's route go to the endpoint
// that the picker names, or to the engine if the address of the picker is empty. ext_proc has the settings of Istio; the picker is
// reached by TLS, which is not verified.
func Config(listen, picker, engine string) ([]byte, error) {
	many := object{"thresholds": []object{{"max_connections": 100000, "max_pending_requests": 100000, "max_requests": 100000}}}
	router := object{"name": "router", "typed_config": typed("extensions.filters.http.router.v3.Router", object{})}
	filters := []object{router}
	pool := object{"name": "pool", "connect_timeout": "5s", "circuit_breakers": many, "type": "STATIC",
		"load_assignment": endpoints("pool", engine)}
	clusters := []object{pool}
	if picker != "" {
		delete(pool, "load_assignment")
		pool["type"], pool["lb_policy"] = "ORIGINAL_DST", "CLUSTER_PROVIDED"
		pool["original_dst_lb_config"] = object{"use_http_header": true, "http_header_name": "x-gateway-destination-endpoint"}
		filters = []object{{"name": "ext_proc", "typed_config": typed("extensions.filters.http.ext_proc.v3.ExternalProcessor", object{
			"grpc_service":    object{"envoy_grpc": object{"cluster_name": "picker"}, "timeout": "10s"},
			"message_timeout": "1000s", "processing_mode": object{
				"request_header_mode": "SEND", "response_header_mode": "SEND", "request_trailer_mode": "SEND", "response_trailer_mode": "SEND",
				"request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED",
			}})}, router}
		clusters = append(clusters, object{"name": "picker", "connect_timeout": "5s", "circuit_breakers": many, "type": "STATIC",
			"load_assignment": endpoints("picker", picker),
			"transport_socket": object{"name": "tls", "typed_config": typed("extensions.transport_sockets.tls.v3.UpstreamTlsContext",
				object{"common_tls_context": object{"alpn_protocols": []string{"h2"}}})},
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
				"extensions.upstreams.http.v3.HttpProtocolOptions", object{"explicit_http_config": object{"http2_protocol_options": object{}}})}})
	}
	manager := typed("extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", object{
		"stat_prefix": "http", "http_filters": filters, "route_config": object{"virtual_hosts": []object{{"name": "all", "domains": []string{"*"},
			"routes": routes()}}},
	})
	config, err := json.Marshal(object{"static_resources": object{"clusters": clusters, "listeners": []object{{"name": "http", "address": socket(listen),
		"filter_chains": []object{{"filters": []object{{"name": "http", "typed_config": manager}}}}}}}})
	if err != nil {
		return nil, fmt.Errorf("writing the configuration of Envoy: %w", err)
	}
	return config, nil
}
