//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// patience with a cluster that starts, on a machine that might be busy.
const patience = 5 * time.Minute

// up builds what is missing, starts the nodes that do not run, and brings the images up to date.
func (c *cluster) up(ctx context.Context) error {
	if err := c.check(); err != nil {
		return fmt.Errorf("this machine cannot have nodes:\n%w", err)
	}
	start := time.Now()
	if err := c.build(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(c.state, 0o755); err != nil { // kubelets want it so
		return fmt.Errorf("making the directory of the state: %w", err)
	}
	if err := c.images(ctx); err != nil {
		return err
	}
	log.Printf("Programs and images are built (%s)", time.Since(start).Round(time.Second))
	if !c.complete() {
		if err := c.begin(ctx); err != nil {
			return errors.Join(err, c.down())
		}
	}
	for _, n := range nodes {
		if err := c.load(ctx, n); err != nil {
			return err
		}
	}
	if err := c.settle(ctx); err != nil {
		return fmt.Errorf("%w; logs are in %s", err, c.file("*", "log"))
	}
	log.Printf("The cluster runs (%s). export KUBECONFIG=%s", time.Since(start).Round(time.Second), c.kubeconfig())
	return nil
}

func (c *cluster) kubeconfig() string { return c.file("pki", "admin.kubeconfig") }

// complete reports whether all nodes run.
func (c *cluster) complete() bool {
	for _, n := range nodes {
		if c.pid(n) == 0 {
			return false
		}
	}
	return true
}

// begin starts all nodes afresh.
func (c *cluster) begin(ctx context.Context) error {
	if err := c.down(); err != nil { // the rest of another that was cut off
		return err
	}
	if err := writePKI(c.file("pki")); err != nil {
		return err
	}
	now, err := boot()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.file(claim), now, 0o600); err != nil {
		return fmt.Errorf("noting what is made: %w", err)
	}
	if err := c.makeGroups(); err != nil {
		return err
	}
	for i, n := range nodes {
		if err := c.writeConfig(n); err != nil {
			return err
		}
		pid, err := c.launch(n)
		if err != nil {
			return err
		}
		if err := c.connect(ctx, i, pid); err != nil {
			return err
		}
	}
	return nil
}

// launch starts the first process of a node, which outlives this one.
func (c *cluster) launch(n nodeSpec) (pid int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("finding this program: %w", err)
	}
	out, err := os.Create(c.file(n.name, "log", "node.log"))
	if err != nil {
		return 0, fmt.Errorf("making the log of %s: %w", n.name, err)
	}
	defer func() { _ = out.Close() }()                         // the node has its own
	cmd := exec.Command(self, "-root", c.root, "node", n.name) //nolint:noctx // itself; it is ended by down
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", out, out
	cmd.Env = []string{"PATH=" + c.programs + ":" + os.Getenv("PATH"), "HOME=/root"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting %s: %w", n.name, err)
	}
	birth, err := birthOf(cmd.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("%s has ended at once: %w", n.name, err)
	}
	if err := os.WriteFile(c.file(n.name, "pid"), fmt.Appendf(nil, "%d %s", cmd.Process.Pid, birth), 0o600); err != nil {
		return 0, errors.Join(fmt.Errorf("noting the process of %s: %w", n.name, err), cmd.Process.Kill())
	}
	return cmd.Process.Pid, nil
}

// connect gives a node its way out: the first to this machine, the others to the first.
func (c *cluster) connect(ctx context.Context, i, pid int) error {
	n := nodes[i]
	var enter []string
	link := hostLink
	if i > 0 {
		enter = []string{"nsenter", "-n", "-t", strconv.Itoa(c.pid(nodes[0]))}
		link = n.name
	}
	routes := []string{n.pods}
	if i == 0 {
		routes = []string{pods, services, "10.200.0.0/16"}
	}
	steps := [][]string{
		{"link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(pid)},
		{"addr", "add", n.gateway + "/30", "dev", link},
		{"link", "set", link, "up"},
	}
	for _, r := range routes {
		steps = append(steps, []string{"route", "add", r, "via", n.address})
	}
	for _, step := range steps {
		args := append(append([]string{}, enter...), append([]string{"ip"}, step...)...)
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// load gives a node the images.
func (c *cluster) load(ctx context.Context, n nodeSpec) error {
	ctr := []string{filepath.Join(c.programs, "ctr"), "-n", "k8s.io"}
	if err := c.until(ctx, "containerd of "+n.name, func() error { return c.enter(ctx, n, append(ctr, "version")...) }); err != nil {
		return err
	}
	tars, err := filepath.Glob(c.file("images", "*.tar"))
	if err != nil {
		return fmt.Errorf("finding the images: %w", err)
	}
	for _, tar := range tars {
		if err := c.enter(ctx, n, append(ctr, "images", "import", tar)...); err != nil {
			return fmt.Errorf("loading %s: %w", filepath.Base(tar), err)
		}
	}
	return nil
}

// enter runs a command in a node's namespaces. An error has what it printed.
func (c *cluster) enter(ctx context.Context, n nodeSpec, args ...string) error {
	cmd := exec.CommandContext(ctx, "nsenter", c.enterArgs(n, args)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s on %s: %w: %s", strings.Join(args, " "), n.name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (c *cluster) enterArgs(n nodeSpec, args []string) []string {
	return append([]string{"-t", strconv.Itoa(c.pid(n)), "-m", "-p", "-n", "-u", "-i", "--"}, args...)
}

// exec runs a command in a node's namespaces in place of this program.
func (c *cluster) exec(name string, args []string) error {
	i, err := nodeIndex(name)
	if err != nil {
		return err
	}
	if c.pid(nodes[i]) == 0 {
		return fmt.Errorf("%s does not run", name)
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return fmt.Errorf("finding nsenter: %w", err)
	}
	environment := append([]string{"PATH=" + c.programs + ":" + os.Getenv("PATH")}, os.Environ()...) // the first of a name counts
	return syscall.Exec(nsenter, append([]string{"nsenter"}, c.enterArgs(nodes[i], args)...), environment)
}

// settle waits until the cluster is as one expects it, with its addons.
func (c *cluster) settle(ctx context.Context) error {
	if err := c.until(ctx, "the API server", func() error { return c.kubectl(ctx, "", "get", "--raw", "/readyz") }); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := c.until(ctx, n.name, func() error {
			return c.kubectl(ctx, "", "wait", "--for=condition=Ready", "node/"+n.name, "--timeout=5s")
		}); err != nil {
			return err
		}
	}
	if err := c.until(ctx, "the addons", func() error {
		return c.kubectl(ctx, addons, "apply", "--server-side", "--force-conflicts", "-f", "-")
	}); err != nil {
		return err
	}
	return c.until(ctx, "CoreDNS", func() error {
		return c.kubectl(ctx, "", "rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=10s")
	})
}

func (c *cluster) kubectl(ctx context.Context, stdin string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.kube, "kubectl"), append([]string{"--kubeconfig=" + c.kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// until tries something until it succeeds.
func (c *cluster) until(ctx context.Context, what string, try func() error) error {
	for end := time.Now().Add(patience); ; {
		err := try()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case time.Now().After(end):
			return fmt.Errorf("%s is not there after %s: %w", what, patience, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
