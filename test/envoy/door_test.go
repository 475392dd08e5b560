package envoy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// door is one backend of a gateway for several pools: real processes of the picker, which follow the same files, and engines that each serve
// one model. It is what gateways make of a fleet's InferencePool, whose selector selects the engines of all pools.
type door struct {
	t       *testing.T
	program string // of the picker
	dir     string
	pools   map[string][]*engine
	all     []*engine
	asks    atomic.Int64
}

const doorPolicy = `apiVersion: kvasir.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: all}
spec:
  targetRefs: [{name: llama}, {name: llama-next}, {name: small}, {name: cold}, {name: lonely}]
  strategy: {type: LeastLoad}
  tokens: {engineBudgetMilliseconds: 5000}
  decisions: {answerHeaders: Always}
  admission:
    tenants:
      identification: APIKey
      unknown: Reject
      secretRefs: [{name: tenants}]
      classes: [{name: default}, {name: small, models: [small]}]
`

const doorRoutes = `apiVersion: kvasir.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec:
  models: [chat]
  rules:
  - matches: [{headers: [{name: x-canary, value: "true"}]}]
    backends: [{pool: llama-next}]
  - backends: [{pool: llama, weight: 70}, {pool: llama-next, weight: 30}]
    fallback: [{pool: small}]
---
apiVersion: kvasir.dev/v1alpha1
kind: ModelRoute
metadata: {name: rare}
spec:
  models: [rare]
  rules: [{backends: [{pool: cold}], fallback: [{pool: small}]}]
`

// startDoor starts the engines: two of llama, one of llama-next, small and lonely each, and none of cold.
func startDoor(t *testing.T) *door {
	t.Helper()
	d := &door{t: t, dir: t.TempDir(), program: filepath.Join(t.TempDir(), "picker"), pools: map[string][]*engine{}}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", d.program, "github.com/kvasir-dev/kvasir/cmd/picker")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the picker: %v\n%s", err, out)
	}
	key := func(name string) string {
		sum := sha256.Sum256([]byte(name))
		return hex.EncodeToString(sum[:])
	}
	d.write("tenants.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: tenants}\nstringData:\n"+
		`  big: '{"class": "default", "sha256": ["`+key("big")+`"]}'`+"\n"+`  little: '{"class": "small", "sha256": ["`+key("little")+`"]}'`+"\n")
	d.write("policy.yaml", doorPolicy)
	d.write("routes.yaml", doorRoutes)
	for _, pool := range []string{"llama", "llama-next", "small", "cold", "lonely"} {
		n := map[string]int{"llama": 2, "cold": 0}
		count, ok := n[pool]
		if !ok {
			count = 1
		}
		d.pools[pool] = engines(t, count, func(c *vllmsim.Config) { c.ServedModelNames = []string{pool} })
		d.all = append(d.all, d.pools[pool]...)
		text := "apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: " + pool + "}\n" +
			"spec: {model: {name: " + pool + "}, selector: {matchLabels: {app: " + pool + "}}, engine: {events: {source: None}}}\n"
		for i, e := range d.pools[pool] {
			_, port, _ := net.SplitHostPort(e.address())
			text += fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %[1]s-%[2]d, labels: {kvasir.dev/pool: %[1]s}}\n"+
				"addressType: IPv4\nports: [{name: http, port: %[3]s}]\nendpoints: [{addresses: [127.0.0.1], targetRef: {kind: Pod, name: %[1]s-%[2]d}}]\n", pool, i, port)
		}
		d.write(pool+".yaml", text)
	}
	return d
}

func (d *door) write(name, text string) {
	d.t.Helper()
	write(d.t, filepath.Join(d.dir, name), []byte(text))
}

// process is a picker.
type process struct {
	run     *exec.Cmd
	address string // of ext_proc
	over    chan struct{}
}

// startPicker starts a picker, and waits until it is ready.
func (d *door) startPicker() *process {
	d.t.Helper()
	free, err := freeport.Addresses("127.0.0.1", 3)
	if err != nil {
		d.t.Fatal(err)
	}
	p := &process{address: free[0], over: make(chan struct{})}
	logs := &output{}
	p.run = exec.Command(d.program, "--standalone", d.dir, "--ext-proc-address", p.address, "--health-address", free[1], "--metrics-address", free[2],
		"--proxy-address", "", "--lame-duck", "2s")
	p.run.Stdout, p.run.Stderr = logs, logs
	if err := p.run.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() { _ = p.run.Wait(); close(p.over) }()
	d.t.Cleanup(func() {
		_ = p.run.Process.Kill()
		<-p.over
		if d.t.Failed() {
			d.t.Logf("picker:\n%.4000s", logs.String())
		}
	})
	until(d.t, "the picker is ready", func() bool {
		answer, err := http.Get("http://" + free[1] + "/readyz")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return p
}

// got is an answer, and the pool in its headers.
type got struct {
	reply
	model, pool, route string
}

// ask sends a completion with a body of its own.
func (d *door) ask(c *http.Client, model, key string, header ...string) got {
	body := fmt.Sprintf(`{"model":%q,"prompt":[1,2,3,%d],"max_tokens":4}`, model, d.asks.Add(1))
	return d.send(c, http.MethodPost, "/v1/completions", body, key, header...)
}

func (d *door) send(c *http.Client, method, path, body, key string, header ...string) got {
	q, err := http.NewRequest(method, "http://envoy"+path, strings.NewReader(body))
	if err != nil {
		return got{reply: reply{err: err}}
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	a, err := c.Do(q)
	if err != nil {
		return got{reply: reply{err: err}}
	}
	defer a.Body.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(a.Body)
	g := got{reply: reply{status: a.StatusCode, body: text.String(), err: err}, route: a.Header.Get("X-Kvasir-Route")}
	var answer struct{ Model string }
	_ = json.Unmarshal(text.Bytes(), &answer)
	g.model = answer.Model
	if at := strings.LastIndex(a.Header.Get("X-Kvasir-Endpoint"), "-"); at > 0 {
		g.pool = a.Header.Get("X-Kvasir-Endpoint")[:at]
	}
	return g
}

// expect checks that a model's engine has answered under its own name.
func (d *door) expect(what string, a got, model string) {
	d.t.Helper()
	if a.status != http.StatusOK || a.model != model || a.pool != model {
		d.t.Errorf("%s: %v by %q, want %s", what, a.reply, a.pool, model)
	}
}

// onlyTheirOwn checks that no engine but those of the excepted models was asked for another model than its own.
func (d *door) onlyTheirOwn(except ...string) {
	d.t.Helper()
	for model, all := range d.pools {
		for _, e := range all {
			if _, others := e.askedFor(model); others > 0 && !slices.Contains(except, model) {
				d.t.Errorf("an engine of %s was asked for other models %d times", model, others)
			}
		}
	}
}

// TestOneDoorServesAllModels: behind each gateway's configuration of a real Envoy, one backend with two picker processes serves four pools by
// the model of the request, with a canary whose sessions stay, and fallbacks.
func TestOneDoorServesAllModels(t *testing.T) {
	if *vllm != "" {
		t.Skip("the real engine has one name")
	}
	d := startDoor(t)
	a, b := d.startPicker(), d.startPicker()
	p := start(t, []string{a.address, b.address}, addresses(d.all), gateways...)
	sides := map[int]string{}
	for _, g := range gateways {
		c := p.client(t, g, http11)
		for _, model := range []string{"llama", "llama-next", "small"} {
			d.expect(g.name+", model "+model, d.ask(c, model, "big"), model)
		}
		d.expect(g.name+", a header that asks for the canary", d.ask(c, "chat", "big", "X-Canary", "true"), "llama-next")
		d.expect(g.name+", a cold pool", d.ask(c, "rare", "big"), "small")
		counts := map[string]int{}
		for i := range 40 {
			answer := d.ask(c, "chat", "big", "X-Session-Id", fmt.Sprint("session-", i))
			if answer.status != http.StatusOK || answer.model != answer.pool || sides[i] != "" && sides[i] != answer.pool {
				t.Errorf("%s, session %d was at %q: %v by %s", g.name, i, sides[i], answer.reply, answer.pool)
			}
			sides[i] = answer.pool
			counts[answer.pool]++
		}
		if counts["llama"] < 15 || counts["llama-next"] < 3 || counts["small"] > 0 {
			t.Errorf("%s: sessions by pool %v", g.name, counts)
		}
		d.tenants(g, c)
		d.hostile(g, c)
	}
	d.onlyTheirOwn()
}

// tenants checks that each tenant uses and sees the models that it is allowed.
func (d *door) tenants(g gateway, c *http.Client) {
	d.t.Helper()
	// The route rare is not listed: its pool has no endpoint, and nothing wakes it.
	for key, want := range map[string][]string{"big": {"chat", "llama", "llama-next", "lonely", "small"}, "little": {"small"}} {
		a := d.send(c, http.MethodGet, "/v1/models", "", key)
		var list struct{ Data []struct{ ID string } }
		if err := json.Unmarshal([]byte(a.body), &list); err != nil {
			d.t.Errorf("%s: the models of %s: %v", g.name, key, a.reply)
		}
		var names []string
		for i := range list.Data {
			names = append(names, list.Data[i].ID)
		}
		slices.Sort(names)
		if !slices.Equal(names, want) {
			d.t.Errorf("%s: %s sees the models %v, want %v", g.name, key, names, want)
		}
	}
	for model, want := range map[string]int{"small": http.StatusOK, "llama": http.StatusForbidden, "chat": http.StatusForbidden} {
		if a := d.ask(c, model, "little"); a.status != want {
			d.t.Errorf("%s: the model %s for a tenant of small: %v, want %d", g.name, model, a.reply, want)
		}
	}
	if a := d.ask(c, "small", "unknown"); a.status != http.StatusUnauthorized {
		d.t.Errorf("%s: an unknown key: %v", g.name, a.reply)
	}
}

// hostile checks what a client cannot do.
func (d *door) hostile(g gateway, c *http.Client) {
	d.t.Helper()
	for what, model := range map[string]string{"an unknown model": "nothing", "a pool's path": "default/llama", "a model of another case": "LLAMA"} {
		if a := d.ask(c, model, "big"); a.status != http.StatusNotFound {
			d.t.Errorf("%s, %s: %v", g.name, what, a.reply)
		}
	}
	if a := d.send(c, http.MethodPost, "/v1/completions", `{"prompt":"x"}`, "big"); a.status != http.StatusBadRequest {
		d.t.Errorf("%s, a body without a model: %v", g.name, a.reply)
	}
	// Nothing in a header leads to another pool than the body's model, and no client names a destination.
	d.expect(g.name+", headers that pretend", d.ask(c, "small", "big", "X-Kvasir-Route", "default/chat", "X-Kvasir-Pool", "default/llama",
		destinationKey, d.pools["llama"][0].address(), destinationKey+"-served", d.pools["llama"][0].address(), "X-Gateway-Model-Name", "llama"), "small")
	if a := d.send(c, http.MethodPost, "/v1/completions", `{"model":"small","prompt":"x"}`, "little", "X-Gateway-Model-Name-Rewrite", "llama"); a.status != http.StatusForbidden {
		d.t.Errorf("%s: a tenant of small has another model written into its request: %v", g.name, a.reply)
	}
}

// TestNoOtherPoolAnswersForADeadOne: the only engine of a pool refuses connections, and the pickers do not know it yet. Gateways that send the
// request again to any endpoint of their backend reach an engine of another pool: the client does not get its answer. Others ask no other.
func TestNoOtherPoolAnswersForADeadOne(t *testing.T) {
	if *vllm != "" {
		t.Skip("the real engine has one name")
	}
	for _, name := range []string{"Istio", "Envoy AI Gateway", "kgateway"} { // one of each way to the destination
		g := gatewayOf(name)
		t.Run(g.name, func(t *testing.T) {
			d := startDoor(t)
			p := start(t, []string{d.startPicker().address}, addresses(d.all), g)
			c := p.client(t, g, http11)
			d.expect("before", d.ask(c, "lonely", "big"), "lonely")
			d.pools["lonely"][0].kill()
			for range 3 {
				if a := d.ask(c, "lonely", "big"); a.status != http.StatusServiceUnavailable {
					t.Errorf("%v by %s", a.reply, a.pool)
				}
			}
			strays := 0
			for _, e := range d.all {
				of, _ := e.askedFor("lonely")
				if e != d.pools["lonely"][0] {
					strays += of
				}
			}
			if again := g.destination == override; (strays > 0) != again {
				t.Errorf("engines of other pools were asked %d times; the gateway sends again: %v", strays, again)
			}
			d.expect("another model", d.ask(c, "small", "big"), "small")
		})
	}
}

// TestADoorsPickersAreReplacedAndKilled under load of three models: while they are replaced, no request fails. When one is killed, only those
// that it had under way can.
func TestADoorsPickersAreReplacedAndKilled(t *testing.T) {
	if *vllm != "" {
		t.Skip("the real engine has one name")
	}
	d := startDoor(t)
	g := best()
	pickers := []*process{d.startPicker(), d.startPicker()}
	known := func() (list []string) {
		for _, one := range pickers {
			list = append(list, one.address)
		}
		return list
	}
	p := start(t, known(), addresses(d.all), g)
	var clients sync.WaitGroup
	var stop atomic.Bool
	var answered, failed atomic.Int64
	var last atomic.Pointer[got]
	for i := range 6 {
		c := p.client(t, g, []string{http11, http2}[i%2])
		clients.Go(func() {
			for n := 0; !stop.Load(); n++ {
				model := []string{"llama", "chat", "small"}[(i+n)%3]
				a := d.ask(c, model, "big", "X-Session-Id", fmt.Sprint("session-", i))
				want := model
				if model == "chat" {
					want = a.pool
				}
				if answered.Add(1); a.status != http.StatusOK || a.model != want || a.model != a.pool {
					failed.Add(1)
					last.Store(&a)
				}
			}
		})
	}
	more := func(n int64) {
		t.Helper()
		end := answered.Load() + n
		until(t, "requests are answered", func() bool { return answered.Load() >= end })
	}
	more(100)
	for i := range pickers {
		old := pickers[i]
		fresh := d.startPicker()
		discover(t, p.dir, pickersFile, append(known(), fresh.address))
		until(t, "Envoy finds the new picker healthy", func() bool { return p.healthy(g, fresh.address) })
		p.settle(t)
		if err := old.run.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		pickers[i] = fresh
		discover(t, p.dir, pickersFile, known())
		select {
		case <-old.over:
		case <-time.After(patience):
			t.Fatal("the picker does not end")
		}
		more(100)
	}
	replaced := answered.Load()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d requests have failed while pickers were replaced, the last: %v by %s", n, replaced, last.Load().reply, last.Load().pool)
	}
	before := failed.Load()
	if err := pickers[0].run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-pickers[0].over
	until(t, "Envoy avoids the killed picker", func() bool { return !p.healthy(g, pickers[0].address) })
	p.settle(t)
	more(12) // those that were under way
	lost := failed.Load() - before
	more(200)
	after := failed.Load() - before - lost
	stop.Store(true)
	clients.Wait()
	if after > 0 {
		t.Errorf("%d requests have failed after Envoy knew that a picker was killed: %v", after, last.Load().reply)
	}
	t.Logf("%d requests; %d failed while both pickers were replaced; %d of those after the kill until Envoy knew it, %d later", answered.Load(), before, lost, after)
	d.onlyTheirOwn()
}
