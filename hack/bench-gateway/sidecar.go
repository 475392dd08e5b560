package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/freeport"
	"github.com/kvasir-dev/kvasir/internal/kvblock"
	"github.com/kvasir-dev/kvasir/internal/sidecar"
)

// inFront is a sidecar in front of the engines, as the reporter with --serve-address.
func inFront(enginePort string) error {
	s := sidecar.New(sidecar.Options{Engine: "127.0.1.1:" + enginePort, Seeds: func() []kvblock.Seed { return nil }})
	listen := func() (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err == nil {
			fmt.Println(l.Addr())
		}
		return l, err
	}
	return s.Serve(context.Background(), listen, nil, time.Second)
}

// sidecars compares Kvasir's sidecar with a relay of bytes, which is the least that a process in between costs, with httputil.ReverseProxy,
// and with llm-d's sidecar, if its program is given, turn by turn: the CPU time of a request that passes.
func (b *bench) sidecars() error {
	ways := []struct {
		name  string
		port  int // the place of its address
		start func() (*process, error)
	}{
		{"kvasir", 0, func() (*process, error) { return b.child("sidecar") }},
		{"reverseProxy", 0, func() (*process, error) { return b.child("reverse") }},
		{"relay", 4, func() (*process, error) { return b.child("reverse") }},
		{"llmd", 0, func() (*process, error) { return b.llmd() }},
	}
	var processes []*process
	for _, way := range ways {
		p, err := way.start()
		if err != nil {
			return err
		}
		if p != nil {
			defer p.stop()
		}
		processes = append(processes, p)
	}
	for _, size := range []int{1 << 10, 32 << 10, 400 << 10} {
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			body := fmt.Appendf(nil, `{"model":%q,"max_tokens":16,"prompt":%q}`, modelName, strings.Repeat("x", size-60))
			least := map[string]float64{}
			for range 3 {
				for i, p := range processes {
					if p == nil {
						continue
					}
					cost, err := b.passes(p, p.addresses[ways[i].port], path, body)
					if err != nil && i > 0 { // the figure is left out
						fmt.Fprintf(os.Stderr, "%s: %v\n", ways[i].name, err)
						continue
					}
					if err != nil {
						return fmt.Errorf("%s: %w", ways[i].name, err)
					}
					if name := ways[i].name + "Us"; least[name] == 0 || cost*1e6 < least[name] {
						least[name] = cost * 1e6
					}
				}
			}
			what := "answer of 1 KB"
			if path != "/v1/completions" {
				what = "stream of 100 events"
			}
			b.record(row{Row: fmt.Sprintf("sidecar, %d KB request, %s", size>>10, what), Value: least["kvasirUs"], Unit: "us CPU", Beside: least})
		}
	}
	return nil
}

// llmd starts llm-d's sidecar in front of the engines; nil if its program is not given.
func (b *bench) llmd() (*process, error) {
	if b.sidecar == "" {
		return nil, nil
	}
	all, err := freeport.Addresses("127.0.0.1", 1)
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(all[0])
	p := &process{addresses: []string{all[0]}}
	p.cmd = exec.Command(b.sidecar, "--port", port, "--model-server-port", b.engine.port, "--metrics-port", "0", //nolint:noctx // ends
		"--secure-proxy=false", "--kv-connector", "nixlv2", "--zap-log-level", "error")
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for range 500 {
		if answer, err := http.Get("http://" + all[0] + "/health"); err == nil { //nolint:noctx // ends
			_ = answer.Body.Close()
			return p, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	p.stop()
	return nil, errors.New("llm-d's sidecar has not started")
}

// passes sends requests, 16 at a time, and gives the CPU seconds of each.
func (b *bench) passes(p *process, address, path string, body []byte) (float64, error) {
	header := http.Header{"Content-Type": {"application/json"}, eventsHeader: {strconv.Itoa(100)}}
	return b.closedBy(p, func(client *http.Client) error { return ask(client, "http://"+address+path, header, body) })
}
