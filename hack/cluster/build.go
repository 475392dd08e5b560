//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/hack/images/oci"
)

// Names of the images that are not Kvasir's.
const (
	pauseImage   = "kvasir/pause:dev"
	corednsImage = "kvasir/coredns:dev"
)

// What hack/cluster/node pins, by package.
var pinned = []string{
	"github.com/containerd/containerd/v2/cmd/containerd",
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
	"github.com/containerd/containerd/v2/cmd/ctr",
	"github.com/containernetworking/plugins/plugins/ipam/host-local",
	"github.com/containernetworking/plugins/plugins/main/loopback",
	"github.com/containernetworking/plugins/plugins/main/ptp",
	"./coredns", "./pause",
}

// kubePrograms are what hack/kube builds for nodes.
var kubePrograms = []string{
	"go.etcd.io/etcd/server/v3",
	"k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler",
	"k8s.io/kubernetes/cmd/kubectl", "k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kube-proxy",
}

// build makes the programs of nodes, once: those of Kubernetes by hack/kube, the others here. Packages are compiled with
// the flags of the tests, and shared with them.
func (c *cluster) build(ctx context.Context) error {
	log.Printf("Building the programs of nodes; what is built is kept in %s and %s", c.kube, c.programs)
	report := newProgress(os.Stderr, c.packages(ctx), time.Now)
	if err := c.command(ctx, report, c.root, filepath.Join(c.root, "hack", "kube", "build.sh"), "node"); err != nil {
		return err
	}
	dir := filepath.Join(c.root, "hack", "cluster", "node")
	stamp, err := c.stamp(dir)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(filepath.Join(c.programs, "stamp")); err == nil && string(old) == stamp {
		return nil
	}
	if err := os.MkdirAll(c.programs, 0o755); err != nil { // all users can run the programs
		return fmt.Errorf("making the directory of the programs: %w", err)
	}
	log.Printf("Building %s", strings.Join(pinned, ", "))
	args := append([]string{"build", "-ldflags=-s -w", "-o", c.programs + "/"}, pinned...)
	if err := c.command(ctx, report, dir, "go", args...); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.programs, "stamp"), []byte(stamp), 0o600); err != nil {
		return fmt.Errorf("noting what was built: %w", err)
	}
	return nil
}

// stamp is a hash of what the programs are built from.
func (c *cluster) stamp(dir string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum", "coredns/main.go", "pause/main.go"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("reading what is pinned: %w", err)
		}
		h.Write(raw)
	}
	_, _ = fmt.Fprint(h, runtime.Version(), pinned)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// images makes the tars of all images, those of Kvasir by hack/images.
func (c *cluster) images(ctx context.Context) error {
	dir := c.file("images")
	args := []string{"run", "./hack/images", "-trimpath=false", "-compress=false", "-bundle=false", "-out", dir}
	log.Printf("Building images")
	if err := c.command(ctx, nil, c.root, "go", args...); err != nil {
		return err
	}
	for program, name := range map[string]string{"pause": pauseImage, "coredns": corednsImage} {
		content, err := os.ReadFile(filepath.Join(c.programs, program))
		if err != nil {
			return fmt.Errorf("reading %s: %w", program, err)
		}
		f, err := os.Create(filepath.Join(dir, program+".tar"))
		if err != nil {
			return fmt.Errorf("making the image of %s: %w", program, err)
		}
		_, err = oci.Write(f, name, false, oci.Image{
			Architecture: runtime.GOARCH, Entrypoint: []string{"/" + program}, Created: time.Unix(0, 0).UTC(),
			Files: []oci.File{{Path: "/" + program, Content: content, Executable: true}},
		})
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("writing the image of %s: %w", program, err)
		}
	}
	return nil
}

// command runs a program. With report, it is one that builds with Go, and says how far it is.
func (c *cluster) command(ctx context.Context, report *progress, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if report != nil {
		cmd.Stderr = report
		flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -v")
		cmd.Env = append(cmd.Env, "GOFLAGS="+flags, "GOGC=off", "GOMEMLIMIT=2GiB") // as hack/kube/build.sh has it
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}
