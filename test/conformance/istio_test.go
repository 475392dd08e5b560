package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"
	"istio.io/istio/pilot/pkg/config/kube/crd"
	"istio.io/istio/pilot/pkg/config/kube/gateway"
	"istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/config/schema/gvr"
	"istio.io/istio/pkg/config/validation"
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
	return objectsOf(t, "install-gateways.md", names...)
}

// objectsOf are those of a page.
func objectsOf(t *testing.T, page string, names ...string) []object {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), bin(t, "objects"), append([]string{page}, names...)...).Output()
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
func cluster(t *testing.T, pools []pool) string {
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
	for _, p := range pools {
		shadow, err := gateway.InferencePoolServiceName(p.name)
		if err != nil {
			t.Fatal(err)
		}
		var engines []string
		for i, ip := range p.engines {
			engines = append(engines, pod(ip, fmt.Sprintf("%s-engine-%d", p.name, i), "llm", p.labels()))
		}
		slice("llm", shadow, "{name: http-0, port: 8000, protocol: TCP}", engines...)
		var pickers []string
		for i, ip := range p.replicas {
			pickers = append(pickers, pod(ip, fmt.Sprintf("%s-picker-%d", p.name, i), "llm",
				"app.kubernetes.io/component: picker, app.kubernetes.io/instance: "+p.name+", app.kubernetes.io/name: kvasir"))
		}
		slice("llm", p.service(), "{name: http, port: 8080, protocol: TCP}, {name: grpc-ext-proc, port: 9002, protocol: TCP}, "+
			"{name: grpc-health, port: 9003, protocol: TCP}, {name: metrics, port: 9090, protocol: TCP}",
			pickers...)
	}
	return text.String()
}

// startIstio starts Istio's control plane over the objects of the page, changed by edit, and Envoy behind it. Names are
// those of further objects of the page, and of a second pool.
func startIstio(t *testing.T, edit func(o object), names ...string) {
	t.Helper()
	startIstioOver(t, []pool{chat, chatNew}, edit, names...)
}

// startIstioOver is startIstio with the pods of the given pools.
func startIstioOver(t *testing.T, pools []pool, edit func(o object), names ...string) {
	t.Helper()
	startIstioWith(t, pools, page(t, names), edit)
}

// startIstioWith is startIstioOver with the given objects.
func startIstioWith(t *testing.T, pools []pool, all []object, edit func(o object)) {
	t.Helper()
	var objects []string
	var configs []config.Config
	services := 1
	for _, o := range all {
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
			configs = append(configs, parse(t, text)...)
			continue
		}
		objects = append(objects, string(text))
	}
	m := mesh.DefaultMeshConfig()
	m.EnableAutoMtls, m.DefaultProviders = wrapperspb.Bool(false), nil
	var listener net.Listener
	xds.NewFakeDiscoveryServer(t, xds.FakeOptions{
		KubernetesObjectString: strings.Join(append(objects, cluster(t, pools)), "\n---\n"),
		Configs:                configs,
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

// parse reads an object of Istio's own kinds as its control plane does: with its validation, and with the cluster's domain,
// which completes names of hosts.
func parse(t *testing.T, text []byte) []config.Config {
	t.Helper()
	parsed, unknown, err := crd.ParseInputs(string(text))
	if err != nil || len(unknown) > 0 || len(parsed) != 1 {
		t.Fatalf("Istio refuses an object: %v, %v\n%s", err, unknown, text)
	}
	parsed[0].Domain = "cluster.local"
	return parsed
}

// startEnvoy starts Envoy as the pod of the Gateway. If the test fails, its configuration is written to out/conformance.
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
	t.Cleanup(func() { dumpEnvoy(t) })
	// An administrative path, because no picker picks for it, whatever the routes take.
	until(t, "Envoy has Istio's listener", func() bool { return get("http://"+gatewayPod+":80/sleep") != 0 })
}

// dumpEnvoy keeps the configuration that Envoy has at the end of a test that failed: whether its listener has ext_proc, and
// which endpoints its clusters have.
func dumpEnvoy(t *testing.T) {
	dir := os.Getenv("KVASIR_OUT")
	if !t.Failed() || dir == "" {
		return
	}
	r, err := (&http.Client{Timeout: patience}).Get("http://127.0.0.1:15000/config_dump?include_eds")
	if err != nil {
		t.Logf("Envoy's configuration is lost: %v", err)
		return
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Logf("Envoy's configuration is lost: %v", err)
		return
	}
	file := filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+".json")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(file, text, 0o600)); err != nil {
		t.Log(err)
		return
	}
	t.Logf("Envoy's configuration is in %s", file)
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

// With two pickers, as the operator runs by default, and the operator's DestinationRule, one picker that is killed costs at most
// one request: Istio ejects it at the first failure, for five seconds at least. In a cluster it is no endpoint of the Service
// by then; here it still is, so that each further ejection can cost a request.
func TestOneOfTwoPickersIsKilledBehindIstio(t *testing.T) {
	two := chat
	two.replicas = []string{chat.picker, secondPicker}
	two.startEngines(t)
	first := two.startPicker(t)
	second := two
	second.picker = secondPicker
	second.startPicker(t)
	startIstioOver(t, []pool{two, chatNew}, func(object) {})
	const requests = 200
	const ejected = 5 * time.Second
	failed, killed := 0, time.Now()
	for i := range 2 * requests {
		if i == requests {
			if asked := sum(t, secondPicker+":9090", "kvasir_picks_total"); failed > 0 || asked == 0 || asked == requests {
				t.Fatalf("with two pickers, %d of %d requests failed, and the second picked for %d", failed, requests, asked)
			}
			first.kill()
			killed = time.Now()
		}
		if a := ask(t); a.status != http.StatusOK || !strings.Contains(a.body, "[DONE]") {
			failed++
			t.Logf("request %d after the kill: %+v", i-requests, a)
		}
	}
	took := time.Since(killed)
	t.Logf("%d of %d requests failed in %v after one of two pickers was killed", failed, requests, took)
	if most := 1 + int(took/ejected); failed > most {
		t.Errorf("%d requests failed, want at most %d", failed, most)
	}
}

// Istio takes the objects that the operator makes for it and those of the page, and it does check them.
func TestObjectsPassIstiosValidation(t *testing.T) {
	var rules []object
	for _, o := range page(t, []string{"chat-picker"}) {
		if o["kind"] != "DestinationRule" {
			continue
		}
		rules = append(rules, o)
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		parsed := parse(t, text)[0]
		if warning, err := validation.ValidateDestinationRule(parsed); err != nil || warning != nil {
			t.Errorf("Istio says of\n%s%v, %v", text, err, warning)
		}
	}
	if len(rules) != 2 || !reflect.DeepEqual(rules[0]["spec"], rules[1]["spec"]) {
		t.Fatalf("the rules of the page and of the operator differ: %v", rules)
	}
	delete(at(rules[0], "spec"), "host")
	text, err := yaml.Marshal(rules[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := crd.ParseInputs(string(text)); err == nil {
		t.Error("Istio takes a rule without a host")
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
