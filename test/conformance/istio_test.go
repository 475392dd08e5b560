package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
	"istio.io/istio/pilot/pkg/config/kube/gateway"
	"istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/config/schema/gvr"
	kubelib "istio.io/istio/pkg/kube"
	"istio.io/istio/pkg/kube/kclient/clienttest"
	"sigs.k8s.io/yaml"
)

// object is any object of Kubernetes.
type object = map[string]any

func at(o object, path ...string) object {
	for _, key := range path {
		next, _ := o[key].(object)
		o = next
	}
	return o
}

// page is what a cluster holds when somebody follows docs/install-gateways.md with Istio.
// Names are those of further objects of the page, and of a second pool.
func page(t *testing.T, names []string) []object {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), bin(t, "objects"), append([]string{"install-gateways.md"}, names...)...).Output()
	if err != nil {
		t.Fatalf("making the objects of the page: %v", err)
	}
	var all []object
	for text := range strings.SplitSeq(string(out), "---\n") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		var o object
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

// cluster is what Kubernetes and Istio's own controllers add: the pods with their addresses, and the state of the route.
func cluster(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	fmt.Fprint(&text, `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: v1
kind: Service
metadata:
  name: inference-gateway-istio
  namespace: gateways
spec:
  clusterIP: 10.8.0.1
  selector: {gateway.networking.k8s.io/gateway-name: inference-gateway}
  ports: [{name: http, port: 80, targetPort: 80, protocol: TCP, appProtocol: http}]
`)
	pod := func(ip, name, namespace, labels string) string {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s, labels: {%s}}\nspec: {containers: [{name: c, image: i}]}\n"+
			"status: {phase: Running, podIP: %s, podIPs: [{ip: %s}], conditions: [{type: Ready, status: 'True'}]}\n", name, namespace, labels, ip, ip)
		return fmt.Sprintf("{addresses: [%s], conditions: {ready: true, serving: true}, targetRef: {kind: Pod, name: %s, namespace: %s}}", ip, name, namespace)
	}
	slice := func(namespace, service, ports string, endpoints ...string) {
		fmt.Fprintf(&text, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-1, namespace: %s, labels: {kubernetes.io/service-name: %s}}\n"+
			"addressType: IPv4\nports: [%s]\nendpoints: [%s]\n", service, namespace, service, ports, strings.Join(endpoints, ", "))
	}
	slice("gateways", "inference-gateway-istio", "{name: http, port: 80, protocol: TCP}",
		pod(gatewayPod, "gateway", "gateways", "gateway.networking.k8s.io/gateway-name: inference-gateway"))
	for _, p := range []pool{chat, chatNew} {
		shadow, err := gateway.InferencePoolServiceName(p.name)
		if err != nil {
			t.Fatal(err)
		}
		var engines []string
		for i, ip := range p.engines {
			engines = append(engines, pod(ip, fmt.Sprintf("%s-engine-%d", p.name, i), "llm", "app: vllm"))
		}
		slice("llm", shadow, "{name: http-0, port: 8000, protocol: TCP}", engines...)
		slice("llm", p.name+"-picker", "{name: http, port: 8080, protocol: TCP}, {name: grpc-ext-proc, port: 9002, protocol: TCP}, "+
			"{name: grpc-health, port: 9003, protocol: TCP}, {name: metrics, port: 9090, protocol: TCP}",
			pod(p.picker, p.name+"-picker", "llm", "app.kubernetes.io/component: picker, app.kubernetes.io/instance: "+p.name+", app.kubernetes.io/name: kvasir"))
	}
	return text.String()
}

// startIstio starts Istio's control plane over the objects of the page, changed by edit, and Envoy behind it. Names are
// those of further objects of the page, and of a second pool.
func startIstio(t *testing.T, edit func(o object), names ...string) {
	t.Helper()
	var objects, configs []string
	services := 1
	for _, o := range page(t, names) {
		edit(o)
		switch o["kind"] {
		case "HTTPRoute": // what Istio's status writer says, which the fake server does not run
			parent := at(o, "spec")["parentRefs"].([]any)[0]
			o["status"] = object{"parents": []any{object{"controllerName": "istio.io/gateway-controller", "parentRef": parent, "conditions": []any{
				object{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}}}
		case "Service":
			if at(o, "spec")["clusterIP"] == nil {
				services++
				at(o, "spec")["clusterIP"] = fmt.Sprintf("10.8.0.%d", services)
			}
		}
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if o["kind"] == "DestinationRule" {
			// The reader of these strings knows no domain, as that of a cluster does.
			text = []byte(strings.Replace(string(text), "-picker\n  trafficPolicy:", "-picker.llm.svc.cluster.local\n  trafficPolicy:", 1))
			configs = append(configs, string(text))
			continue
		}
		objects = append(objects, string(text))
	}
	m := mesh.DefaultMeshConfig()
	m.EnableAutoMtls, m.DefaultProviders = wrapperspb.Bool(false), nil
	var listener net.Listener
	xds.NewFakeDiscoveryServer(t, xds.FakeOptions{
		KubernetesObjectString: strings.Join(append(objects, cluster(t)), "\n---\n"),
		ConfigString:           strings.Join(configs, "\n---\n"),
		MeshConfig:             m,
		KubeClientModifier:     func(c kubelib.Client) { clienttest.MakeCRD(t, c, gvr.InferencePool) },
		ListenerBuilder: func() (net.Listener, error) {
			l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			listener = l
			return l, err
		},
	})
	startEnvoy(t, listener.Addr().(*net.TCPAddr).Port)
}

// startEnvoy starts Envoy as the pod of the Gateway.
func startEnvoy(t *testing.T, port int) {
	t.Helper()
	ads := object{"ads": object{}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
	config, err := json.Marshal(object{
		"node": object{"id": "router~" + gatewayPod + "~gateway.gateways~gateways.svc.cluster.local", "cluster": "inference-gateway-istio.gateways",
			"metadata": object{"NAMESPACE": "gateways", "CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.0", "INSTANCE_IPS": gatewayPod,
				"LABELS": object{"gateway.networking.k8s.io/gateway-name": "inference-gateway"}}},
		"admin": object{"address": object{"socket_address": object{"address": "127.0.0.1", "port_value": 15000}}},
		"dynamic_resources": object{"lds_config": ads, "cds_config": ads, "ads_config": object{"api_type": "GRPC", "transport_api_version": "V3",
			"grpc_services": []any{object{"envoy_grpc": object{"cluster_name": "xds-grpc"}}}}},
		"static_resources": object{"clusters": []any{object{"name": "xds-grpc", "type": "STATIC", "connect_timeout": "5s",
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{}}}},
			"load_assignment": object{"cluster_name": "xds-grpc", "endpoints": []any{object{"lb_endpoints": []any{object{"endpoint": object{
				"address": object{"socket_address": object{"address": "127.0.0.1", "port_value": port}}}}}}}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	execute(t, bin(t, "envoy"), "-c", file, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning")
	until(t, "Envoy has Istio's listener", func() bool { return get("http://"+gatewayPod+":80/") != 0 })
}

// answer is what a client gets.
type answer struct {
	status int
	body   string
}

func ask(t *testing.T) answer { return askHost(t, "llm.example.com") }

func askHost(t *testing.T, host string) answer {
	t.Helper()
	body := fmt.Sprintf(`{"model":%q,"prompt":[1,2,3,4],"max_tokens":4,"stream":true}`, model)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gatewayPod+":80/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Host = host
	q.Header.Set("Content-Type", "application/json")
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Do(q)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return answer{r.StatusCode, string(text)}
}

// A newcomer with Istio follows the page: the first request is answered.
func TestTheFirstRequestBehindIstioIsAnswered(t *testing.T) {
	chat.startEngines(t)
	chat.startPicker(t)
	startIstio(t, func(object) {})
	if a := ask(t); a.status != http.StatusOK || !strings.Contains(a.body, "[DONE]") {
		t.Errorf("the first request: %+v", a)
	}
	if status := get("http://" + gatewayPod + ":80/metrics"); status != http.StatusNotFound {
		t.Errorf("a path that the route does not have is answered with %d", status)
	}
}

// Without the protocol of its port Istio speaks HTTP/1.1 to the picker. The conformance tests of the inference extension
// set it always.
func TestAPortWithoutAProtocolGetsNoRequestAnswered(t *testing.T) {
	chat.startEngines(t)
	chat.startPicker(t)
	startIstio(t, func(o object) {
		if o["kind"] != "Service" {
			return
		}
		for _, port := range at(o, "spec")["ports"].([]any) {
			if p := port.(object); p["name"] == "grpc-ext-proc" {
				delete(p, "appProtocol")
				p["name"] = "ext-proc"
			}
		}
	})
	if a := ask(t); a.status != http.StatusInternalServerError {
		t.Errorf("a request: %+v", a)
	}
}

// With FailClose nothing is answered without a picker; with FailOpen requests without a body are. Requests with a body
// fail even then: Istio has begun to stream the body to the picker when the connection breaks, and cannot send it again.
func TestThePickerIsKilledBehindIstio(t *testing.T) {
	for mode, want := range map[string]int{"FailClose": http.StatusInternalServerError, "FailOpen": http.StatusOK} {
		t.Run(mode, func(t *testing.T) {
			chat.startEngines(t)
			picker := chat.startPicker(t)
			startIstio(t, func(o object) {
				if o["kind"] == "InferencePool" {
					at(o, "spec", "endpointPickerRef")["failureMode"] = mode
				}
			})
			if a := ask(t); a.status != http.StatusOK {
				t.Errorf("with a picker: %+v", a)
			}
			picker.kill()
			if status := models(t); status != want {
				t.Errorf("without a picker: %d, want %d", status, want)
			}
			failed := 0
			const requests = 20
			for range requests {
				if a := ask(t); a.status == http.StatusInternalServerError {
					failed++
				} else if mode == "FailClose" || a.status != http.StatusOK {
					t.Errorf("with a body, without a picker: %+v", a)
				}
			}
			t.Logf("%s: %d of %d requests with a body failed", mode, failed, requests)
			if failed == 0 {
				t.Error("all requests with a body were answered: docs/install-gateways.md says that they fail")
			}
		})
	}
}

// models asks for the list of models, which has no body.
func models(t *testing.T) int {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+gatewayPod+":80/v1/models", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	q.Host = "llm.example.com"
	r, err := (&http.Client{Timeout: patience}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	return r.StatusCode
}

// The split of the page is between the proxies of two pools.
func TestASplitBetweenPoolsBehindIstio(t *testing.T) {
	for _, p := range []pool{chat, chatNew} {
		p.startEngines(t)
		p.startPicker(t)
	}
	startIstio(t, func(object) {}, "chat-split", chatNew.name)
	const requests = 200
	for range requests {
		if a := askHost(t, "split.example.com"); a.status != http.StatusOK || !strings.Contains(a.body, "[DONE]") {
			t.Fatalf("a request: %+v", a)
		}
	}
	// The weights are 90 and 10: of 200 requests, fewer than 2 or more than 50 are less probable than one in a million.
	old, split := sum(t, chat.picker+":9090", "kvasir_picks_total"), sum(t, chatNew.picker+":9090", "kvasir_picks_total")
	if old+split != requests || split < 2 || split > 50 {
		t.Errorf("the pickers have picked for %d and %d requests", old, split)
	}
}

// Of two pools in one rule, Istio asks one picker alone. This is the reason for the condition's PoolsShareRule; when Istio
// asks both, that can go.
func TestTwoPoolsInOneRuleLoseAPickerOnIstio(t *testing.T) {
	for _, p := range []pool{chat, chatNew} {
		p.startEngines(t)
		p.startPicker(t)
	}
	startIstio(t, func(o object) {
		if at(o, "metadata")["name"] != "chat-split" {
			return
		}
		var refs []any
		for _, p := range []pool{chat, chatNew} {
			refs = append(refs, object{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": p.name, "weight": 50})
		}
		at(o, "spec")["rules"].([]any)[0].(object)["backendRefs"] = refs
	}, "chat-split", chatNew.name)
	const requests = 100
	for range requests {
		if a := askHost(t, "split.example.com"); a.status != http.StatusOK {
			t.Fatalf("a request: %+v", a)
		}
	}
	var asked, served []int
	for _, p := range []pool{chat, chatNew} {
		asked = append(asked, sum(t, p.picker+":9090", "kvasir_picks_total"))
		n := 0
		for _, engine := range p.engines {
			n += sum(t, engine+":8000", "vllm:request_success_total")
		}
		served = append(served, n)
	}
	t.Logf("asked: %d, served: %d", asked, served)
	if min(asked[0], asked[1]) != 0 || max(asked[0], asked[1]) != requests || min(served[0], served[1]) == 0 {
		t.Errorf("the pickers were asked %d times, their engines served %d requests", asked, served)
	}
}
