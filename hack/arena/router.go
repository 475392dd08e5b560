//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvasir-dev/kvasir/hack/demo/fleet"
)

// model is the name of the engines' model.
const model = fleet.Model

// site is where a router is started: in front of a fleet, with free ports.
type site struct {
	bin, dir string
	fleet    *fleet.Fleet
	port     int   // serves requests
	others   []int // for what else the router serves
}

// program is a router that is installed.
type program struct{ version, path, libraries string }

// command starts a router.
type command struct {
	path string
	env  []string
	args []string
}

// router is one that takes part, with its best documented settings.
type router struct {
	name string
	// peer is the name of its program for install.sh; empty for Kvasir.
	peer string
	// strategy is Kvasir's; empty for its defaults.
	strategy string
	command  func(p program, s *site) (command, error)
	// ready reports whether the router is as it is to be measured, beyond that it serves; nil for no condition.
	ready func(ctx context.Context, s *site) bool
}

// routers are all that take part.
var routers = []router{
	{name: "kvasir", command: kvasir, ready: exact},
	{name: "kvasir-engines", command: kvasirEngines},
	{name: "kvasir-round-robin", strategy: "RoundRobin", command: kvasir, ready: exact},
	{name: "vllm-router-kv", peer: "vllm-router", command: vllmRouterKV},
	{name: "vllm-router-tree", peer: "vllm-router", command: vllmRouterTree},
	{name: "smg", peer: "smg", command: smg},
	{name: "sglang-router", peer: "sglang-router", command: sglangRouter},
	{name: "dynamo", peer: "ai-dynamo"},
	{name: "haproxy-leastconn", peer: "haproxy", command: haproxy("balance leastconn")},
	{name: "haproxy-session", peer: "haproxy", command: haproxy("balance hdr(x-session-id)\n  hash-type consistent")},
	{name: "nginx-least-conn", peer: "nginx", command: nginx},
}

// notRun says why a router cannot take part.
var notRun = map[string]string{
	"dynamo": "its frontend routes to workers inside its own runtime, not to engines that serve the OpenAI API",
}

// install finds the program of a router, and installs it if necessary.
func (r *router) install(source string) (program, error) {
	if reason := notRun[r.name]; reason != "" {
		return program{}, fmt.Errorf("%s", reason)
	}
	if r.peer == "" {
		return program{version: "this tree"}, nil
	}
	cmd := exec.Command(filepath.Join(source, "install.sh"), r.peer) //nolint:noctx // pip has timeouts of its own
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return program{}, fmt.Errorf("not installed: %s", lastLine(errs.String()))
	}
	fields := append(strings.Fields(string(out)), "", "", "")
	return program{version: fields[0], path: fields[1], libraries: fields[2]}, nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// kvasir has the model's files, and makes tokens itself.
func kvasir(_ program, s *site) (command, error) {
	args, err := s.fleet.PickerArgs()
	return s.picker(args), err
}

// exact reports whether the picker has proven that its own tokens are the engines', so that it asks no engine.
func exact(ctx context.Context, s *site) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+fleet.Local(s.others[0])+"/status?output=json", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close() // only read
	status, err := io.ReadAll(resp.Body)
	return err == nil && bytes.Contains(status, []byte(`"type":"TokensExact","status":"True"`))
}

// kvasirEngines knows nothing but the engines' addresses and their model.
func kvasirEngines(_ program, s *site) (command, error) {
	urls := make([]string, len(s.fleet.PodURLs))
	for i, url := range s.fleet.PodURLs {
		urls[i] = fmt.Sprintf("%s?events=%d&replay=%d", url, s.fleet.Ports[i].Events, s.fleet.Ports[i].Replay)
	}
	return s.picker([]string{"--engines", strings.Join(urls, ","), "--model", model}), nil
}

func (s *site) picker(args []string) command {
	return command{path: filepath.Join(s.bin, "picker"), args: append(args, "--proxy-address", fleet.Local(s.port),
		"--metrics-address", fleet.Local(s.others[0]), "--health-address", fleet.Local(s.others[1]), "--ext-proc-address", "")}
}

// address are the flags of all routers of this family.
func (s *site) address() []string {
	args := []string{"--host", "127.0.0.1", "--port", strconv.Itoa(s.port), "--prometheus-port", strconv.Itoa(s.others[0]), "--worker-urls"}
	return append(args, s.fleet.PodURLs...)
}

// vllmRouterKV follows the engines' events, and asks them for the tokens of requests.
func vllmRouterKV(p program, s *site) (command, error) {
	args := append(s.address(), "--policy", "kv_aware", "--kv-event-block-size", strconv.Itoa(fleet.BlockTokens), "--kv-event-model", model)
	for i, url := range s.fleet.PodURLs {
		args = append(args, "--kv-event-source", fmt.Sprintf("%s=tcp://%s", url, fleet.Local(s.fleet.Ports[i].Events)),
			"--kv-event-replay-source", fmt.Sprintf("%s=tcp://%s", url, fleet.Local(s.fleet.Ports[i].Replay)))
	}
	return command{path: p.path, args: args}, nil
}

func vllmRouterTree(p program, s *site) (command, error) {
	return command{path: p.path, args: append(s.address(), "--policy", "cache_aware")}, nil
}

func sglangRouter(p program, s *site) (command, error) {
	return command{path: p.path, args: append(append([]string{"launch"}, s.address()...), "--policy", "cache_aware")}, nil
}

// smg follows events of gRPC engines only; of these it keeps a tree of texts.
func smg(p program, s *site) (command, error) {
	return command{path: p.path, args: append(append([]string{"launch"}, s.address()...), "--policy", "cache_aware", "--backend", "vllm")}, nil
}

func haproxy(balance string) func(program, *site) (command, error) {
	return func(p program, s *site) (command, error) {
		var b strings.Builder
		fmt.Fprintf(&b, `global
  maxconn 5000
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  option redispatch
  retries 3
listen engines
  bind %s
  %s
`, fleet.Local(s.port), balance)
		for i, port := range s.fleet.Ports {
			fmt.Fprintf(&b, "  server pod%d %s check inter 1s\n", i, fleet.Local(port.HTTP))
		}
		file := filepath.Join(s.dir, "haproxy.cfg")
		return command{path: p.path, env: []string{"LD_LIBRARY_PATH=" + p.libraries}, args: []string{"-f", file}},
			os.WriteFile(file, []byte(b.String()), 0o600)
	}
}

func nginx(p program, s *site) (command, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `daemon off;
master_process off;
pid %[1]s/nginx.pid;
error_log stderr;
events { worker_connections 5000; }
http {
  access_log off;
  client_max_body_size 64m;
  client_body_buffer_size 4m;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  upstream engines {
    least_conn;
    keepalive 256;
`, s.dir)
	for _, port := range s.fleet.Ports {
		fmt.Fprintf(&b, "    server %s;\n", fleet.Local(port.HTTP))
	}
	fmt.Fprintf(&b, `  }
  server {
    listen %s;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 300s;
      proxy_next_upstream error timeout non_idempotent;
    }
  }
}
`, fleet.Local(s.port))
	file := filepath.Join(s.dir, "nginx.conf")
	return command{path: p.path, args: []string{"-c", file, "-p", s.dir}}, os.WriteFile(file, []byte(b.String()), 0o600)
}
