package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvasir-dev/kvasir/internal/bench"
	"github.com/kvasir-dev/kvasir/internal/freeport"
)

const (
	// kvasirStrategy is the picker's default.
	kvasirStrategy = "MarginalCost"
	// poolName is the name of the pool of the picker that is started.
	poolName = "engines"
	// startTimeout bounds the picker's start, enterTimeout the change to another strategy, endTimeout the picker's end.
	startTimeout = 60 * time.Second
	enterTimeout = 30 * time.Second
	endTimeout   = 10 * time.Second
	// pollEvery is how often is looked whether the picker is ready.
	pollEvery = 100 * time.Millisecond
	// resolveTimeout bounds looking up an engine's host name.
	resolveTimeout = 10 * time.Second
)

// ways returns both ways to the engines, and a function that ends what was started for them.
func (o *options) ways(ctx context.Context) (before, after *bench.Way, end func() error, err error) {
	if o.before != "" {
		return &bench.Way{Name: "Before", URL: o.before}, &bench.Way{Name: "After", URL: o.after}, func() error { return nil }, nil
	}
	p, err := o.startPicker(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	way := func(name, strategy string) *bench.Way {
		return &bench.Way{Name: name, URL: p.url, Enter: func(ctx context.Context) error { return p.enter(ctx, strategy) }}
	}
	return way(o.baseline, o.baseline), way("Kvasir", kvasirStrategy), p.end, nil
}

// picker is a picker that was started, with its objects in a directory.
type picker struct {
	cmd         *exec.Cmd
	dir, url    string
	health, log string
	model, key  string
	done        chan struct{} // closed when it has ended
}

func (o *options) startPicker(ctx context.Context) (*picker, error) {
	dir, err := os.MkdirTemp("", "kvasir-bench-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the picker: %w", err)
	}
	p := &picker{dir: dir, model: o.load.Model, key: o.key, log: filepath.Join(o.out, "picker.log"), done: make(chan struct{})}
	if err := p.start(ctx, o); err != nil {
		return nil, errors.Join(err, p.end())
	}
	return p, nil
}

func (p *picker) start(ctx context.Context, o *options) error {
	if err := writeObjects(ctx, p.dir, o); err != nil {
		return err
	}
	ports, err := freeport.Addresses("127.0.0.1", 4)
	if err != nil {
		return err
	}
	p.url, p.health = "http://"+ports[0], "http://"+ports[2]
	args := []string{"--standalone", p.dir, "--proxy-address", ports[0], "--metrics-address", ports[1],
		"--health-address", ports[2], "--ext-proc-address", ports[3]}
	if o.modelDir != "" {
		full, err := filepath.Abs(o.modelDir)
		if err != nil {
			return fmt.Errorf("finding --model-dir: %w", err)
		}
		args = append(args, "--model-root", filepath.Dir(full))
	}
	output, err := os.Create(p.log)
	if err != nil {
		return fmt.Errorf("starting the picker: %w", err)
	}
	defer output.Close()                    // the child has its own descriptor
	p.cmd = exec.Command(o.picker, args...) //nolint:noctx // end stops it
	p.cmd.SysProcAttr = child()
	p.cmd.Stdout, p.cmd.Stderr = output, output
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return fmt.Errorf("starting the picker: %w", err)
	}
	go func() {
		_ = p.cmd.Wait() // its state says how it ended
		close(p.done)
	}()
	return p.await(ctx, startTimeout, "the picker to be ready", func(ctx context.Context) error {
		return get(ctx, p.health+"/readyz")
	})
}

// enter makes the picker route by a strategy, and returns when requests are.
func (p *picker) enter(ctx context.Context, strategy string) error {
	policy := map[string]any{
		"apiVersion": "kvasir.dev/v1alpha1", "kind": "RoutingPolicy", "metadata": map[string]any{"name": poolName},
		"spec": map[string]any{
			"targetRefs": []any{map[string]any{"name": poolName}}, "strategy": map[string]any{"type": strategy},
			"decisions": map[string]any{"answerHeaders": "Always"},
		},
	}
	if err := writeObject(filepath.Join(p.dir, "policy.json"), policy); err != nil {
		return err
	}
	client := bench.NewClient(p.url, p.key)
	defer client.Close()
	return p.await(ctx, enterTimeout, "the strategy "+strategy, func(ctx context.Context) error {
		switch got, err := client.Ask(ctx, p.model); {
		case err != nil:
			return err
		case got != strategy:
			return fmt.Errorf("requests are routed by %q", got)
		}
		return nil
	})
}

// await polls until ready returns no error. It fails with the last error when the time is over or the picker has ended.
func (p *picker) await(ctx context.Context, limit time.Duration, what string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-poll.C:
		case <-p.done:
			return fmt.Errorf("the picker has ended (%v); its log is %s", p.cmd.ProcessState, p.log)
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; the picker's log is %s", what, err, p.log)
		}
	}
}

// end ends the picker and removes its directory.
func (p *picker) end() error {
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-p.done:
		case <-time.After(endTimeout):
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	return os.RemoveAll(p.dir)
}

// writeObjects writes the pool and the engines for the picker.
func writeObjects(ctx context.Context, dir string, o *options) error {
	model := map[string]any{"name": o.load.Model}
	if o.modelDir != "" {
		full, err := filepath.Abs(o.modelDir)
		if err != nil {
			return fmt.Errorf("finding --model-dir: %w", err)
		}
		model["tokenizer"] = map[string]any{"type": "Directory", "directory": map[string]any{"path": filepath.Base(full)}}
	}
	pool := map[string]any{
		"apiVersion": "kvasir.dev/v1alpha1", "kind": "InferencePool", "metadata": map[string]any{"name": poolName},
		"spec": map[string]any{"model": model, "selector": map[string]any{"matchLabels": map[string]any{"app": poolName}}},
	}
	if err := writeObject(filepath.Join(dir, "pool.json"), pool); err != nil {
		return err
	}
	for i := range o.engines {
		slice, err := sliceOf(ctx, i, &o.engines[i])
		if err != nil {
			return err
		}
		if err := writeObject(filepath.Join(dir, "engine-"+strconv.Itoa(i)+".json"), slice); err != nil {
			return err
		}
	}
	return nil
}

// sliceOf is the EndpointSlice of the i-th engine. A host name with several addresses is refused: each engine's counters are read
// at its own address.
func sliceOf(ctx context.Context, i int, e *bench.Engine) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", e.Host)
	if err != nil {
		return nil, fmt.Errorf("looking up the engine %s: %w", e.URL(), err)
	}
	var v4, v6 []string
	for _, ip := range found {
		if ip = ip.Unmap(); ip.Is4() {
			v4 = append(v4, ip.String())
		} else {
			v6 = append(v6, ip.String())
		}
	}
	kind := "IPv4"
	if len(v4) == 0 {
		v4, kind = v6, "IPv6"
	}
	if len(v4) != 1 {
		return nil, fmt.Errorf("the host of the engine %s has the addresses %s; list each engine by its own address", e.URL(), strings.Join(v4, ", "))
	}
	ports := []any{map[string]any{"name": "http", "port": e.Port}}
	if e.Events > 0 {
		ports = append(ports, map[string]any{"name": "kv-events", "port": e.Events})
	}
	if e.Replay > 0 {
		ports = append(ports, map[string]any{"name": "kv-replay", "port": e.Replay})
	}
	return map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
		"metadata":    map[string]any{"name": "engine-" + strconv.Itoa(i), "labels": map[string]any{"kvasir.dev/pool": poolName}},
		"addressType": kind, "ports": ports,
		"endpoints": []any{map[string]any{
			"addresses": v4, "targetRef": map[string]any{"kind": "Pod", "name": "engine-" + strconv.Itoa(i), "uid": "engine-" + strconv.Itoa(i)},
		}},
	}, nil
}

// writeObject replaces a file at once: the picker reads the directory at any time.
func writeObject(path string, object map[string]any) error {
	text, err := json.Marshal(object)
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("writing the picker's objects: %w", err)
	}
	return nil
}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() // not read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", url, resp.StatusCode)
	}
	return nil
}
