package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// post sends a request and reads the answer.
func post(client *http.Client, address, path string, body []byte) error {
	return ask(client, "http://"+address+path, http.Header{"Content-Type": {"application/json"}}, body)
}

// ask is post with a header.
func ask(client *http.Client, url string, header http.Header, body []byte) error {
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body)) //nolint:noctx // ends
	if err != nil {
		return err
	}
	r.Header = header.Clone()
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", answer.StatusCode)
	}
	return err
}

// proxied compares the proxy with httputil.ReverseProxy, turn by turn.
func (b *bench) proxied() error {
	ours, err := b.child("serve")
	if err != nil {
		return err
	}
	defer ours.stop()
	theirs, err := b.child("reverse")
	if err != nil {
		return err
	}
	defer theirs.stop()
	ids := make([]string, 0, 200)
	for i := 0; len(strings.Join(ids, ",")) < 1<<10-80; i++ {
		ids = append(ids, strconv.Itoa(1000+i))
	}
	body := fmt.Appendf(nil, `{"model":%q,"max_tokens":16,"prompt":[%s]}`, modelName, strings.Join(ids, ","))
	var best [2]float64
	for range 3 {
		for i, p := range []*process{ours, theirs} {
			address := p.addresses[0]
			if i == 0 {
				address = p.addresses[2]
			}
			cost, err := b.closed(p, address, body)
			if err != nil {
				return err
			}
			if best[i] == 0 || cost < best[i] {
				best[i] = cost
			}
		}
	}
	b.record(row{Row: "proxy, 1 KB request and answer", Value: best[0] / best[1], Unit: "x the CPU of httputil.ReverseProxy", Limit: 1.5,
		Beside: map[string]float64{
			"proxyUs": best[0] * 1e6, "reverseProxyUs": best[1] * 1e6, "bytes": float64(len(body)),
		}})
	return nil
}

// closed sends requests, 16 at a time, and gives the CPU seconds of each.
func (b *bench) closed(p *process, address string, body []byte) (float64, error) {
	return b.closedBy(p, func(client *http.Client) error { return post(client, address, "/v1/completions", body) })
}

// closedBy is closed for requests of a function.
func (b *bench) closedBy(p *process, one func(*http.Client) error) (float64, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	const workers = 16
	each := int(b.length.Seconds() * 100)
	var failed error
	var mu sync.Mutex
	var wait sync.WaitGroup
	go16 := func(n int) {
		for range workers {
			wait.Go(func() {
				for range n {
					if err := one(client); err != nil {
						mu.Lock()
						failed = err
						mu.Unlock()
						return
					}
				}
			})
		}
		wait.Wait()
	}
	go16(20)
	before := p.cpu()
	go16(each)
	return (p.cpu() - before).Seconds() / float64(workers*each), failed
}

// events measures what ext_proc and the proxy add to the latency of events.
func (b *bench) events() error {
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
	for _, encrypted := range []bool{true, false} {
		if err := b.throughPicker(p, other, encrypted); err != nil {
			return err
		}
	}
	return b.throughProxy(p, other)
}

// throughPicker measures events through ext_proc. Without it an event would not wait at all, so that all of its time is
// added.
func (b *bench) throughPicker(p, other *process, encrypted bool) error {
	name, ours, echo := "TLS", p.addresses[0], other.addresses[1]
	if !encrypted {
		name, ours, echo = "plaintext", p.addresses[1], other.addresses[2]
	}
	beside := map[string]float64{}
	for range rounds { // turn by turn, the least disturbed of each
		for key, measure := range map[string]func() ([]time.Duration, error){
			"":           func() ([]time.Duration, error) { return leanEvents(ours, encrypted) },
			"echo":       func() ([]time.Duration, error) { return leanEvents(echo, encrypted) },
			"tcp":        func() ([]time.Duration, error) { return tcpEvents(other.addresses[3]) },
			"grpcClient": func() ([]time.Duration, error) { return events(ours, encrypted) },
		} {
			took, err := measure()
			if err != nil {
				return err
			}
			slices.Sort(took)
			for suffix, value := range map[string]time.Duration{"P50us": took[len(took)/2], "P90us": took[len(took)*9/10], "LeastUs": took[0]} {
				if before, ok := beside[key+suffix]; !ok || us(value) < before {
					beside[key+suffix] = us(value)
				}
			}
		}
	}
	b.record(row{Row: "event through ext_proc, " + name, Value: beside["P50us"], Unit: "µs added, p50", Limit: 100, Beside: beside})
	return nil
}

// rounds of measurements by the clock.
const rounds = 3

// throughProxy measures events through the proxy, httputil.ReverseProxy, and a relay of bytes.
func (b *bench) throughProxy(p, other *process) error {
	body := conversations(sizes[1])[0].turn(0)
	p50 := map[string]float64{}
	for range rounds {
		for key, address := range map[string]string{
			"direct": "127.0.1.1:" + b.engine.port, "proxy": p.addresses[2], "reverseProxy": other.addresses[0], "tcpRelay": other.addresses[4],
		} {
			took, err := follow(address, body)
			if err != nil {
				return err
			}
			slices.Sort(took)
			if before, ok := p50[key+"Us"]; !ok || us(took[len(took)/2]) < before {
				p50[key+"Us"] = us(took[len(took)/2])
			}
		}
	}
	b.record(row{Row: "event through the proxy", Value: p50["proxyUs"] - p50["directUs"], Unit: "µs added, p50", Limit: 100, Beside: p50})
	return nil
}

// events measures how long events of an answer take to return to a client of gRPC's own library, which passes each of them
// on twice.
func events(address string, encrypted bool) ([]time.Duration, error) {
	g, err := dial(address, encrypted, 1)
	if err != nil {
		return nil, err
	}
	defer g.close()
	s, _, err := g.route(context.Background(), 0, conversations(sizes[1])[0].turn(0))
	if err != nil {
		return nil, err
	}
	return answer(s, streamEvents, streamEvery)
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// follow gives the ages of events when they arrive.
func follow(address string, body []byte) ([]time.Duration, error) {
	answer, err := http.Post("http://"+address+"/v1/chat/completions", "application/json", bytes.NewReader(body)) //nolint:noctx // ends
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	var took []time.Duration
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		_, rest, ok := strings.Cut(lines.Text(), `"t":`)
		made, _, _ := strings.Cut(rest, ",")
		if n, err := strconv.ParseInt(made, 10, 64); ok && err == nil {
			took = append(took, time.Since(time.Unix(0, n)))
		}
	}
	if len(took) == 0 {
		return nil, fmt.Errorf("no events from %s: status %d", address, answer.StatusCode)
	}
	return took, lines.Err()
}

// idle measures the entire picker when it only polls 100 engines.
func (b *bench) idle() error {
	const engines = 100
	dir, err := os.MkdirTemp("", "bench-gateway")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var objects strings.Builder
	fmt.Fprintf(&objects, `apiVersion: kvasir.dev/v1alpha1
kind: InferencePool
metadata: {name: bench}
spec:
  model: {name: %s}
  selector: {matchLabels: {app: bench}}
  engine: {events: {source: None}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bench, labels: {kvasir.dev/pool: bench}}
addressType: IPv4
ports: [{name: http, port: %s}]
endpoints:
`, modelName, b.engine.port)
	for i := range engines {
		fmt.Fprintf(&objects, "- {addresses: [127.0.2.%d], conditions: {ready: true}, targetRef: {kind: Pod, name: pod-%d}}\n", i+1, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(objects.String()), 0o600); err != nil {
		return err
	}
	const local = "127.0.0.1:0"
	pickers := []*process{}
	for i, program := range append([]string{""}, b.beside...) {
		program = filepath.Join(program, filepath.Base(b.picker))
		if i == 0 {
			program = b.picker
		}
		p := &process{cmd: exec.Command(program, "--standalone", dir, "--proxy-address", local, "--health-address", local, //nolint:noctx // given
			"--metrics-address", local, "--ext-proc-address", local, "--log-level", "error")}
		p.cmd.Stderr = os.Stderr
		if err := p.cmd.Start(); err != nil {
			return err
		}
		defer p.stop()
		pickers = append(pickers, p)
	}
	time.Sleep(3 * time.Second)
	before, switches, start := make([]time.Duration, len(pickers)), make([]int, len(pickers)), time.Now()
	for i, p := range pickers {
		before[i], switches[i] = p.cpu(), p.switches()
	}
	time.Sleep(2 * b.length)
	for i, p := range pickers {
		r := row{Row: "idle picker, 100 endpoints scraped", Value: (p.cpu() - before[i]).Seconds() / time.Since(start).Seconds(),
			Unit: "cores", Limit: 0.1, Beside: map[string]float64{
				"MB": float64(p.memory()) / 1e6, "pageKB": float64(len(b.engine.metrics)) / 1e3,
				"switchesPerSecond": float64(p.switches()-switches[i]) / time.Since(start).Seconds(),
			}}
		if i > 0 {
			r.Row += ", " + filepath.Base(b.beside[i-1])
		}
		b.record(r)
	}
	return nil
}
