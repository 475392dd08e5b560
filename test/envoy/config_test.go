package envoy

import (
	"encoding/json"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// object is a part of Envoy's configuration.
type object = map[string]any

func typed(kind string, fields object) object {
	fields["@type"] = "type.googleapis.com/" + kind
	return fields
}

// extension is an object of an open set of kinds: Envoy knows more of them than its own configuration names.
func extension(name, kind string, fields object) object {
	return object{"name": name, "typed_config": typed(kind, fields)}
}

func socket(t *testing.T, hostPort string) object {
	t.Helper()
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		t.Fatal(err)
	}
	return object{"socket_address": object{"address": host, "port_value": json.Number(port)}}
}

const destinationKey = "x-gateway-destination-endpoint"

func metadata(key string) object { return object{"key": lb, "path": []object{{"key": key}}} }

// poolCluster is the cluster of the engines.
func (g gateway) poolCluster(dir string) object {
	breakers := object{"max_connections": 100000, "max_pending_requests": 100000, "max_requests": 100000, "max_retries": 100000}
	connects := g.connects
	if connects == "" {
		connects = "10s"
	}
	cluster := object{"name": g.poolName(), "connect_timeout": connects, "circuit_breakers": object{"thresholds": []object{breakers}}}
	switch g.destination {
	case byHeader:
		cluster["type"], cluster["lb_policy"] = "ORIGINAL_DST", "CLUSTER_PROVIDED"
		cluster["original_dst_lb_config"] = object{"use_http_header": true, "http_header_name": destinationKey}
	case byMetadata:
		cluster["type"], cluster["lb_policy"] = "ORIGINAL_DST", "CLUSTER_PROVIDED"
		cluster["original_dst_lb_config"] = object{"metadata_key": metadata(destinationKey)}
	case override:
		discovered(cluster, dir, enginesFile)
		policy := func(name, kind string, fields object) object {
			return object{"policies": []object{{"typed_extension_config": extension(name, "envoy.extensions.load_balancing_policies."+kind, fields)}}}
		}
		cluster["load_balancing_policy"] = policy("override_host", "override_host.v3.OverrideHost", object{
			"override_host_sources": []object{{"metadata": metadata(destinationKey)}}, "selected_host_key": metadata(destinationKey + "-served"),
			"fallback_policy": policy("fallback", g.fallback, object{}),
		})
	case subset:
		discovered(cluster, dir, enginesFile)
		cluster["lb_subset_config"] = object{"fallback_policy": "ANY_ENDPOINT", "subset_selectors": []object{{"keys": []string{destinationKey}}}}
	}
	return cluster
}

func (g gateway) poolName() string { return "pool-" + g.destination + "-" + g.fallback }

func (g gateway) pickersName() string {
	name := "pickers-" + g.pickers
	if g.http1 {
		name += "-http1"
	}
	if g.trusted != "" {
		name += "-trusted"
	}
	return name
}

// pickersCluster is the cluster of the pickers.
func (g gateway) pickersCluster(dir string) object {
	validation := object{}
	if g.trusted != "" {
		validation["trusted_ca"] = object{"filename": g.trusted}
	}
	cluster := object{
		"name": g.pickersName(), "connect_timeout": "10s", "ignore_health_on_host_removal": true,
		"circuit_breakers": object{"thresholds": []object{{"max_connections": 100000, "max_pending_requests": 100000, "max_requests": 100000}}},
		"transport_socket": extension("tls", "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
			object{"common_tls_context": object{"validation_context": validation}}),
		// By default the main thread collects changes of health for up to a second before its worker gets them (proxy.settle).
		"common_lb_config": object{"healthy_panic_threshold": object{"value": 0}, "update_merge_window": "0s"},
	}
	discovered(cluster, dir, pickersFile)
	if !g.http1 {
		cluster["typed_extension_protocol_options"] = object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions", object{"explicit_http_config": object{"http2_protocol_options": object{}}})}
	}
	switch g.pickers {
	case "", checked:
		cluster["health_checks"] = []object{{"timeout": "3s", "interval": "0.2s", "no_traffic_interval": "0.2s", "unhealthy_threshold": 1,
			"healthy_threshold": 1, "always_log_health_check_failures": true, "grpc_health_check": object{}}}
	case outlier:
		cluster["outlier_detection"] = object{"consecutive_gateway_failure": 1, "enforcing_consecutive_gateway_failure": 100,
			"interval": "1s", "base_ejection_time": "5s", "max_ejection_percent": 50}
	}
	return cluster
}

// listener serves a gateway on a unix socket in dir.
func (g gateway) listener(dir string) object {
	timeout := g.timeout
	if timeout == "" {
		timeout = "0s"
	}
	route := object{"cluster": g.poolName(), "timeout": timeout}
	if g.retryOn != "" {
		route["retry_policy"] = object{"retry_on": g.retryOn, "num_retries": 2, "retry_back_off": object{"base_interval": "0.001s", "max_interval": "0.002s"},
			"retry_host_predicate":              []object{extension("previous", "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate", object{})},
			"host_selection_retry_max_attempts": 5}
	}
	filters := []object{extension("ext_proc", "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor", g.filter())}
	if g.destination == subset {
		filters = append(filters, extension("header_to_metadata", "envoy.extensions.filters.http.header_to_metadata.v3.Config", object{
			"request_rules": []object{{"header": destinationKey, "on_header_present": object{"metadata_namespace": lb, "key": destinationKey}}}}))
	}
	manager := object{
		"stat_prefix": "http", "codec_type": "AUTO", "access_log": []object{accessLog(dir, g.name)},
		"http_filters": append(filters, extension("router", "envoy.extensions.filters.http.router.v3.Router", object{})),
		"route_config": object{"virtual_hosts": []object{{"name": "all", "domains": []string{"*"},
			"routes": []object{{"match": object{"prefix": "/"}, "route": route}}}}},
	}
	return object{"name": g.name, "address": object{"pipe": object{"path": filepath.Join(dir, g.socket())}},
		"filter_chains": []object{{"filters": []object{extension("http",
			"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", manager)}}}}
}

// socket is the name of the listener's socket.
func (g gateway) socket() string {
	name := []rune(g.name)
	for i, r := range name {
		if r != '-' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			name[i] = '_'
		}
	}
	return string(name)
}

// filter is the configuration of ext_proc.
func (g gateway) filter() object {
	service := object{"envoy_grpc": object{"cluster_name": g.pickersName(), "authority": "picker.default.svc:9002"}}
	if g.calls != "" {
		service["timeout"] = g.calls
	}
	filter := object{
		"grpc_service": service, "message_timeout": g.messages, "failure_mode_allow": g.failOpen,
		"processing_mode": object{
			"request_header_mode": "SEND", "response_header_mode": "SEND", "request_body_mode": g.request, "response_body_mode": g.response,
			"request_trailer_mode": "SEND", "response_trailer_mode": "SEND",
		},
		"metadata_options": object{"forwarding_namespaces": object{"untyped": g.forward}, "receiving_namespaces": object{"untyped": g.receive}},
	}
	if g.attempts {
		filter["response_attributes"] = []string{"upstream.request_attempt_count"}
	}
	if g.observe {
		filter["observability_mode"], filter["deferred_close_timeout"] = true, "1s"
	}
	return filter
}

// accessLog is the log that Envoy writes of a listener's requests, a line of JSON for each.
func accessLog(dir, listener string) object {
	return extension("file", "envoy.extensions.access_loggers.file.v3.FileAccessLog", object{"path": filepath.Join(dir, "access.log"),
		"log_format": object{"json_format": object{
			"listener": listener, "id": "%REQ(X-TEST-ID)%", "host": "%UPSTREAM_HOST%", "code": "%RESPONSE_CODE%", "flags": "%RESPONSE_FLAGS%",
			"sent": "%BYTES_SENT%", "protocol": "%PROTOCOL%", "details": "%RESPONSE_CODE_DETAILS%",
		}}})
}

// The files in which Envoy finds addresses and its mark, in its folder.
const (
	pickersFile = "pickers"
	enginesFile = "engines"
	markFile    = "mark"
)

// discovered has a cluster find its endpoints in a file.
func discovered(cluster object, dir, file string) {
	cluster["type"] = "EDS"
	cluster["eds_cluster_config"] = object{"service_name": file,
		"eds_config": object{"resource_api_version": "V3", "path_config_source": object{"path": filepath.Join(dir, file)}}}
}

// discover writes a file of addresses. Envoy reads it when it takes the place of another.
func discover(t *testing.T, dir, file string, addresses []string) {
	t.Helper()
	all := []object{}
	for _, a := range addresses {
		all = append(all, object{"endpoint": object{"address": socket(t, a)},
			"metadata": object{"filter_metadata": object{lb: object{destinationKey: a}}}})
	}
	offer(t, dir, file, typed("envoy.config.endpoint.v3.ClusterLoadAssignment", object{"cluster_name": file, "endpoints": []object{{"lb_endpoints": all}}}))
}

// offer writes a file of one resource.
func offer(t *testing.T, dir, file string, resource object) {
	t.Helper()
	text, err := json.Marshal(object{"version_info": "1", "resources": []object{resource}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, file), text)
}

// markListener answers every request, on a unix socket in dir, with the mark that its worker has.
func markListener(dir string) object {
	manager := object{
		"stat_prefix": markFile, "codec_type": "HTTP1",
		"http_filters": []object{extension("router", "envoy.extensions.filters.http.router.v3.Router", object{})},
		"rds": object{"route_config_name": markFile,
			"config_source": object{"resource_api_version": "V3", "path_config_source": object{"path": filepath.Join(dir, markFile)}}},
	}
	return object{"name": markFile, "address": object{"pipe": object{"path": filepath.Join(dir, markSocket)}},
		"filter_chains": []object{{"filters": []object{extension("http",
			"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", manager)}}}}
}

const markSocket = "mark.sock"

// setMark writes the file of the mark.
func setMark(t *testing.T, dir string, mark int) {
	t.Helper()
	offer(t, dir, markFile, typed("envoy.config.route.v3.RouteConfiguration", object{"name": markFile,
		"virtual_hosts": []object{{"name": "all", "domains": []string{"*"}, "routes": []object{{"match": object{"prefix": "/"},
			"direct_response": object{"status": 200, "body": object{"inline_string": strconv.Itoa(mark)}}}}}}}))
}

// bootstrap is the configuration of an Envoy with a listener for each gateway.
func bootstrap(t *testing.T, dir string, all []gateway) []byte {
	t.Helper()
	listeners, clusters := []object{markListener(dir)}, []object(nil)
	seen := []string{}
	add := func(name string, cluster object) {
		if !slices.Contains(seen, name) {
			seen, clusters = append(seen, name), append(clusters, cluster)
		}
	}
	for _, g := range all {
		listeners = append(listeners, g.listener(dir))
		add(g.poolName(), g.poolCluster(dir))
		add(g.pickersName(), g.pickersCluster(dir))
	}
	text, err := json.Marshal(object{
		"node":             object{"id": "envoy", "cluster": "envoy"},
		"admin":            object{"address": object{"pipe": object{"path": filepath.Join(dir, "admin")}}},
		"static_resources": object{"listeners": listeners, "clusters": clusters},
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}
