package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

const samples = "../../config/samples/standalone"

// The sample files work as they stand; only the ports are those of engines that happen to be free here.
func TestTheSamplesServe(t *testing.T) {
	dir := t.TempDir()
	ports := []string{"8000", "5557", "5657", "8001", "5558", "5658"}
	var replace []string
	for i := range 2 {
		e := engine(t, "demo-model")
		for j, address := range []string{e.Addr(), e.EventsAddr(), e.ReplayAddr()} {
			replace = append(replace, "port: "+ports[3*i+j], "port: "+portOf(t, address))
		}
	}
	for _, name := range []string{"pool.yaml", "policy.yaml", "pods.yaml"} {
		text, err := os.ReadFile(filepath.Join(samples, name))
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, name), strings.NewReplacer(replace...).Replace(string(text)))
	}
	p := runOn(t, dir)
	p.awaitReady()

	if status, body := p.complete("demo-model"); status != http.StatusOK || !strings.Contains(body, `"usage"`) {
		t.Errorf("completion: status %d, %s", status, body)
	}
	if status, body := p.complete("other"); status != http.StatusNotFound || !strings.Contains(body, "model_not_found") {
		t.Errorf("unknown model: status %d, %s", status, body)
	}
	if status, body := p.get(p.listeners.proxy, "/v1/models"); status != http.StatusOK || !strings.Contains(body, `"demo-model"`) {
		t.Errorf("models: status %d, %s", status, body)
	}
	p.eventually("the status says that both streams are synchronised", func() bool {
		_, body := p.get(p.listeners.metrics, "/status?output=json")
		return strings.Contains(body, `"endpoints":{"total":2,"ready":2,"synced":2,"degraded":0}`)
	})
	_, status := p.get(p.listeners.metrics, "/status")
	for _, want := range []string{"kind: List", "reason: Synced", "reason: Programmed", "2 of 2 endpoints"} {
		if !strings.Contains(status, want) {
			t.Errorf("the status lacks %q:\n%s", want, status)
		}
	}
	_, page := p.get(p.listeners.metrics, "/metrics")
	for _, want := range []string{`kvasir_requests_total{namespace="default",outcome="completed",pool="demo"} 1`, `kvasir_events_state{endpoint="demo-0/0",namespace="default",pool="demo",state="Synced"} 1`} {
		if !strings.Contains(page, want) {
			t.Errorf("the metrics lack %q", want)
		}
	}
	if status, _ := p.get(p.listeners.metrics, "/debug/pprof/"); status != http.StatusNotFound {
		t.Errorf("profiles are served without being asked for: status %d", status)
	}
	if status, body := p.get(p.listeners.health, "/healthz"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("health: status %d, %s", status, body)
	}
	p.eventually("the engines' metrics are read", func() bool {
		_, page := p.get(p.listeners.metrics, "/metrics")
		return strings.Contains(page, `kvasir_endpoint_kv_capacity_tokens{endpoint="demo-0/0",namespace="default",pool="demo"}`) &&
			!strings.Contains(page, `kvasir_endpoint_kv_capacity_tokens{endpoint="demo-0/0",namespace="default",pool="demo"} 0`)
	})
	for line := range strings.Lines(p.logs.String()) {
		if !strings.Contains(line, " level=INFO ") {
			t.Errorf("nothing asks for attention, but the picker has logged %s", line)
		}
	}
}

func TestChangesAreInForceWhileRequestsRun(t *testing.T) {
	dir, first, second := t.TempDir(), engine(t, "m"), engine(t, "m")
	put(t, filepath.Join(dir, "pool.yaml"), poolText("m", "m", ""))
	put(t, filepath.Join(dir, "pods.yaml"), sliceText(t, "m", "first", first))
	p := runOn(t, dir)
	p.awaitReady()
	if status, body := p.complete("m"); status != http.StatusOK {
		t.Fatalf("status %d, %s", status, body)
	}

	// A request waits in the first pod while its place is taken by the second.
	first.Pause()
	type answer struct {
		status int
		body   string
	}
	answers := make(chan answer, 1)
	go func() {
		status, body := p.complete("m")
		answers <- answer{status, body}
	}()
	p.eventually("a request is in the first pod", func() bool { return requests(first) == 1 })
	put(t, filepath.Join(dir, "pods.yaml"), sliceText(t, "m", "second", second))
	p.eventually("the second pod is in force", func() bool {
		_, body := p.get(p.listeners.metrics, "/metrics")
		return strings.Contains(body, `kvasir_endpoint_pickable{endpoint="second/0",namespace="default",pool="m"} 1`)
	})
	if status, body := p.complete("m"); status != http.StatusOK {
		t.Errorf("status %d, %s", status, body)
	}
	first.Resume()
	if got := <-answers; got.status != http.StatusOK {
		t.Errorf("the request in the pod that is gone: status %d, %s", got.status, got.body)
	}

	// All endpoints are removed, then the pool. Requests are not held until an endpoint is added.
	put(t, filepath.Join(dir, "policy.yaml"), `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: m, namespace: default}
spec: {targetRefs: [{name: m}], admission: {holdSeconds: 0}}
`)
	p.eventually("the policy is in force", func() bool {
		_, status := p.get(p.listeners.metrics, "/status")
		return strings.Contains(status, "RoutingPolicy m is in force")
	})
	if err := os.Remove(filepath.Join(dir, "pods.yaml")); err != nil {
		t.Fatal(err)
	}
	p.eventually("no endpoint", func() bool { status, _ := p.complete("m"); return status == http.StatusServiceUnavailable })
	if err := os.Remove(filepath.Join(dir, "pool.yaml")); err != nil {
		t.Fatal(err)
	}
	p.eventually("no pool", func() bool { status, _ := p.complete("m"); return status == http.StatusNotFound })
	p.eventually("no stream", func() bool { return second.Subscribers() == 0 })
}

// requests of an engine, in any state.
func requests(e *vllmsim.Engine) int {
	s := e.Stats()
	return s.Running + s.Waiting
}

func TestTheEndWaitsForOpenStreams(t *testing.T) {
	dir, e := t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
	p := runOn(t, dir)
	p.awaitReady()
	e.Pause()
	answer := make(chan string, 1)
	go func() {
		_, body := p.do(http.MethodPost, url(p.listeners.proxy, "/v1/completions"),
			`{"model":"m","prompt":[1,2,3],"max_tokens":3,"stream":true}`)
		answer <- body
	}()
	p.eventually("a request is in the pod", func() bool { return requests(e) == 1 })

	p.stop()
	p.eventually("not ready any more", func() bool {
		status, body := p.get(p.listeners.health, "/readyz")
		return status == http.StatusServiceUnavailable && body == "draining\n"
	})
	p.eventually("no new connections", func() bool {
		c, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.listeners.proxy.Addr().String())
		if err != nil {
			return true
		}
		_ = c.Close()
		return false
	})
	select {
	case <-p.done:
		t.Fatal("the picker has ended before its streams")
	default:
	}
	e.Resume()
	if body := <-answer; !strings.Contains(body, "[DONE]") {
		t.Errorf("the stream was aborted: %q", body)
	}
	<-p.done
}

func TestTheEndIsBounded(t *testing.T) {
	dir, e := t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
	p := runOn(t, dir, "--drain-timeout", "1ms")
	p.awaitReady()
	e.Pause()
	defer e.Resume()
	answer := make(chan int, 1)
	go func() { status, _ := p.complete("m"); answer <- status }()
	p.eventually("a request is in the pod", func() bool { return requests(e) == 1 })
	p.stop()
	if status := <-answer; status == http.StatusOK {
		t.Error("a request that cannot have been answered was")
	}
	<-p.done
	p.eventually("the engine aborts the request", func() bool { return requests(e) == 0 })
}

func TestWhatThePickerRefuses(t *testing.T) {
	dir, e := t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "a.yaml"), poolText("a", "m", "")+"---\n"+sliceText(t, "a", "pod", e))
	p := runOn(t, dir, "--model-root", t.TempDir())
	p.awaitReady()

	put(t, filepath.Join(dir, "b.yaml"), poolText("b", "m", ""))
	p.eventually("a name that is taken shows", func() bool {
		_, body := p.get(p.listeners.metrics, "/status?output=json")
		return strings.Contains(body, `"reason":"NameTaken"`) && strings.Contains(body, "InferencePool default/b")
	})

	// A pool whose tokenizer cannot be loaded says so, and goes on.
	put(t, filepath.Join(dir, "a.yaml"), poolText("a", "m", ", tokenizer: {type: Directory, directory: {path: none}}")+
		"---\n"+sliceText(t, "a", "pod-2", e))
	p.eventually("a tokenizer that is missing shows", func() bool {
		_, body := p.get(p.listeners.metrics, "/status?output=json")
		return strings.Contains(body, `"reason":"FilesMissing"`)
	})
	if status, body := p.complete("m"); status != http.StatusOK {
		t.Errorf("status %d, %s", status, body)
	}
	if _, page := p.get(p.listeners.metrics, "/metrics"); !strings.Contains(page, `kvasir_endpoint_pickable{endpoint="pod-2/0",namespace="default",pool="a"} 1`) {
		t.Error("the pool has not got its new pod")
	}

	// When the pool that has the name goes, the other one gets it.
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	p.eventually("the other pool has the name", func() bool {
		_, body := p.get(p.listeners.metrics, "/status?output=json")
		return !strings.Contains(body, "NameTaken") && strings.Contains(body, "NoReadyEndpoint")
	})
}

func TestWhatCannotStart(t *testing.T) {
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer occupied.Close()
	file := filepath.Join(t.TempDir(), "key")
	put(t, file, "too short")
	local := []string{"--proxy-address", "127.0.0.1:0", "--health-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0", "--ext-proc-address", ""}
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no directory named":    {nil, 2, "--standalone"},
		"two sources":           {[]string{"--standalone", "x", "--pool", "a/b"}, 2, "exclude"},
		"half a pool":           {[]string{"--pool", "b"}, 2, "NAMESPACE/NAME"},
		"two pools":             {[]string{"--gateway-pool", "a/c", "--pool", "a/b"}, 2, "exclude"},
		"half a gateway's pool": {[]string{"--gateway-pool", "b"}, 2, "--gateway-pool"},
		"a cluster for files":   {[]string{"--standalone", "x", "--kubeconfig", "k"}, 2, "--pool"},
		"no cluster":            {append([]string{"--pool", "a/b", "--kubeconfig", file + "-not"}, local...), 1, "reaching the cluster"},
		"no such directory":     {append([]string{"--standalone", file + "-not"}, local...), 1, "no such file or directory"},
		"not a directory":       {append([]string{"--standalone", file}, local...), 1, "not a directory"},
		"a short key":           {append([]string{"--standalone", t.TempDir(), "--key-file", file}, local...), 1, "key file"},
		"no key":                {append([]string{"--standalone", t.TempDir(), "--key-file", file + "-not"}, local...), 1, "key file"},
		"an address taken": {append(append([]string{"--standalone", t.TempDir()}, local...), "--health-address", occupied.Addr().String()), 1,
			"--health-address: another program listens at " + occupied.Addr().String() + ": end it, or choose another port"},
		"a gateway's port taken": {append(append([]string{"--standalone", t.TempDir()}, local...), "--ext-proc-address", occupied.Addr().String()), 1, "--ext-proc-address: another program listens at "},
		"a pool's port taken":    {append(append([]string{"--standalone", t.TempDir()}, local...), "--ext-proc", "a/b="+occupied.Addr().String()), 1, "--ext-proc a/b: another program listens at "},
		"a port alone":           {append(append([]string{"--standalone", t.TempDir()}, local...), "--proxy-address", "8080"), 1, `--proxy-address: "8080" is not HOST:PORT`},
		"a port too high":        {append(append([]string{"--standalone", t.TempDir()}, local...), "--proxy-address", ":99999"), 1, `--proxy-address: ":99999" is not HOST:PORT`},
		"a time without unit":    {[]string{"--standalone", "x", "--lame-duck", "5"}, 2, "for --lame-duck: want a time with its unit"},
		"an unknown flag":        {[]string{"--standalon", "x"}, 2, "standalon"},
		"an argument":            {[]string{"--standalone", "x", "y"}, 2, `"y"`},
		"an unknown level":       {[]string{"--standalone", "x", "--log-level", "loud"}, 2, `"loud"`},
		"an unknown format":      {[]string{"--standalone", "x", "--log-format", "xml"}, 2, `"xml"`},
		"a lame duck before":     {[]string{"--standalone", "x", "--lame-duck", "-1s"}, 2, "--lame-duck"},
		"a drain into the past":  {[]string{"--standalone", "x", "--drain-timeout", "-1s"}, 2, "--drain-timeout"},
		"nothing but a question": {[]string{"--help"}, 0, "ext-proc-address"},
	} {
		t.Run(name, func(t *testing.T) {
			var out buffer
			done := make(chan int, 1)
			go func() { done <- Main(tc.args, &out, &out) }()
			select {
			case code := <-done:
				if code != tc.code || !strings.Contains(out.String(), tc.want) {
					t.Errorf("exit status %d, want %d with %q in:\n%s", code, tc.code, tc.want, out.String())
				}
			case <-time.After(patience):
				t.Fatal("it has started")
			}
		})
	}
}

func TestKeyFilesMakeTheSameKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	put(t, file, strings.Repeat("k", 32))
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pool.yaml"), poolText("m", "m", ""))
	ids := map[string]bool{}
	for range 2 {
		p := runOn(t, dir, "--key-file", file)
		p.awaitReady()
		_, body := p.get(p.listeners.metrics, "/status?output=json")
		_, rest, ok := strings.Cut(body, `"keyID":"`)
		id, _, _ := strings.Cut(rest, `"`)
		if !ok || len(id) != 16 {
			t.Fatalf("no key id in %s", body)
		}
		ids[id] = true
		if strings.Contains(p.logs.String(), "random key root") {
			t.Error("the log speaks of a random root")
		}
	}
	if len(ids) != 1 {
		t.Errorf("key ids %v, want one", ids)
	}
	p := runOn(t, dir)
	p.awaitReady()
	if !strings.Contains(p.logs.String(), "random key root") {
		t.Error("the log does not speak of the random root")
	}
}

func TestProfilesAreServedOnDemand(t *testing.T) {
	p := runOn(t, t.TempDir(), "--pprof", "--log-format", "json")
	if status, _ := p.get(p.listeners.metrics, "/debug/pprof/"); status != http.StatusOK {
		t.Errorf("status %d, want 200", status)
	}
	if !strings.HasPrefix(p.logs.String(), `{"time"`) {
		t.Errorf("the log is not JSON: %s", p.logs)
	}
}

// Every flag is explained in the documentation.
func TestTheDocumentationNamesEveryFlag(t *testing.T) {
	text, err := os.ReadFile("../../docs/standalone.md")
	if err != nil {
		t.Fatal(err)
	}
	var usage buffer
	if _, err := parse([]string{"--help"}, &usage, &usage); err == nil {
		t.Fatal("no help")
	}
	n := 0
	for line := range strings.Lines(usage.String()) {
		name, isFlag := strings.CutPrefix(strings.TrimSpace(line), "--")
		if !isFlag {
			continue
		}
		n++
		name = strings.Fields(name)[0]
		if !strings.Contains(string(text), "`--"+name) {
			t.Errorf("docs/standalone.md says nothing of --%s", name)
		}
	}
	if n < 10 {
		t.Errorf("only %d flags found in the help", n)
	}
}

// A gateway reaches an engine through the picker, over the TLS that is there by default, and asks for its health.
func TestAGatewayIsServed(t *testing.T) {
	dir, e := t.TempDir(), engine(t, "m")
	put(t, filepath.Join(dir, "all.yaml"), poolText("m", "m", "")+"---\n"+sliceText(t, "m", "pod", e))
	i := runOn(t, dir)
	i.eventually("the log reports that objects were applied", func() bool {
		return strings.Contains(i.logs.String(), `msg="Objects applied" pools=1`)
	})
	unchecked := grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})) // as gateways do
	g, err := envoytest.New(envoytest.Options{
		Pickers: []string{i.listeners.gateways[0].Addr().String()}, Dial: []grpc.DialOption{unchecked}, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	server := httptest.NewServer(g)
	defer server.Close()
	status, body := i.do(http.MethodPost, server.URL+"/v1/completions", `{"model":"m","prompt":[1,2,3],"max_tokens":1}`)
	if status != http.StatusOK || !strings.Contains(body, `"usage"`) {
		t.Errorf("status %d: %s", status, body)
	}
	if status, body := i.do(http.MethodPost, server.URL+"/v1/completions", `{`); status != http.StatusBadRequest {
		t.Errorf("status %d, want 400: %s", status, body)
	}
	if v := g.Violations(); len(v) > 0 {
		t.Errorf("rules of Envoy's are broken: %q", v)
	}

	health, err := grpc.NewClient("passthrough:///"+i.listeners.health.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = health.Close() }()
	i.eventually("the health port says so", func() bool {
		answer, err := healthpb.NewHealthClient(health).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "inference-extension"})
		return err == nil && answer.GetStatus() == healthpb.HealthCheckResponse_SERVING
	})
}
