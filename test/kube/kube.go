// Package kube starts a Kubernetes control plane for tests: etcd and kube-apiserver, with the definitions of config/crd by
// default, and on request kube-controller-manager and kube-scheduler. All listen on loopback addresses and free ports only.
// There is no kubelet: pods stay as tests leave them, and a scheduled pod is removed when it is deleted without grace.
//
// The API server authorizes by RBAC. Its admission of service accounts is off, so that pods need none.
//
// The programs are in KUBEBUILDER_ASSETS, or in bin/kube, which `make kube` fills.
package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// How long programs can take to start and to stop. Machines that run tests can be very busy.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = time.Minute
)

// Options say what runs besides etcd and kube-apiserver.
type Options struct {
	// ControllerManager collects garbage, deletes namespaces, runs Deployments and so on.
	ControllerManager bool
	// Scheduler binds pods to nodes. Nodes are objects that the test makes.
	Scheduler bool
	// Definitions are files or directories with more CustomResourceDefinitions.
	Definitions []string
	// Bare leaves the definitions of config/crd out, for tests that install them.
	Bare bool
}

// Cluster is a running control plane.
type Cluster struct {
	// Config reaches it as an administrator.
	Config *rest.Config

	assets     string
	dir        string // of files, removed at the end
	kubeconfig string // file of an administrator
	env        *envtest.Environment
	programs   []*program
	crashed    []string // arguments of the API server, while it is down
	recovered  *program // the API server, after it was down
}

// Start starts a control plane. The caller must Stop it.
func Start(o Options) (*Cluster, error) {
	assets, err := Assets()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kvasir-kube-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the control plane: %w", err)
	}
	definitions := o.Definitions
	if !o.Bare {
		definitions = append([]string{filepath.Join(Root(), "config", "crd", "bases")}, definitions...)
	}
	c := &Cluster{assets: assets, dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig"), env: &envtest.Environment{
		BinaryAssetsDirectory:    assets,
		CRDDirectoryPaths:        definitions,
		CRDInstallOptions:        envtest.CRDInstallOptions{MaxTime: startTimeout},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  stopTimeout,
	}}
	if err := addresses(c.env); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := c.start(o); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(o Options) error {
	var err error
	if c.Config, err = c.env.Start(); err != nil {
		return fmt.Errorf("starting the control plane: %w", err)
	}
	admin, err := c.env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return fmt.Errorf("making an administrator: %w", err)
	}
	kubeconfig, err := admin.KubeConfig()
	if err != nil {
		return fmt.Errorf("making a kubeconfig: %w", err)
	}
	if err := os.WriteFile(c.kubeconfig, kubeconfig, 0o600); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	if o.ControllerManager {
		if err := c.run("kube-controller-manager"); err != nil {
			return err
		}
	}
	if o.Scheduler {
		return c.run("kube-scheduler")
	}
	return nil
}

// run starts a controller of Kubernetes.
func (c *Cluster) run(name string) error {
	p, err := launch(filepath.Join(c.assets, name), filepath.Join(c.dir, name+".log"),
		"--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--bind-address="+Loopback(), "--secure-port=0")
	if err != nil {
		return err
	}
	c.programs = append(c.programs, p)
	return nil
}

// Stop ends all that Start started, and removes its files. It fails if a controller had ended before.
func (c *Cluster) Stop() error {
	var errs []error
	for i := len(c.programs) - 1; i >= 0; i-- {
		errs = append(errs, c.programs[i].stop())
	}
	c.programs = nil
	if c.recovered != nil {
		errs = append(errs, c.recovered.stop())
		c.recovered = nil
	}
	if err := c.env.Stop(); err != nil {
		errs = append(errs, fmt.Errorf("stopping the control plane: %w", err))
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// ServiceAccount makes a kubeconfig for programs that act as a service account, without its token: a certificate has
// its name. Rights are given by RBAC.
func (c *Cluster) ServiceAccount(namespace, name string) (file string, err error) {
	user, err := c.env.AddUser(envtest.User{
		Name: "system:serviceaccount:" + namespace + ":" + name, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace},
	}, nil)
	if err != nil {
		return "", fmt.Errorf("making the service account %s/%s: %w", namespace, name, err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		return "", fmt.Errorf("making a kubeconfig for %s/%s: %w", namespace, name, err)
	}
	file = filepath.Join(c.dir, namespace+"-"+name+".kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		return "", fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return file, nil
}

// Kubeconfig is a file with which an administrator reaches the cluster.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig }

// Kubectl runs kubectl as an administrator and returns what it prints. A failure reports what it printed as an error.
func (c *Cluster) Kubectl(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.assets, "kubectl"),
		append([]string{"--kubeconfig", c.kubeconfig, "--cache-dir", filepath.Join(c.dir, "cache")}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %v: %w: %s", args, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// Assets returns the directory of the programs.
func Assets() (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	dir := filepath.Join(Root(), "bin", "kube")
	// The build writes the stamp when all programs are there.
	if _, err := os.Stat(filepath.Join(dir, "stamp")); err != nil {
		return "", fmt.Errorf("looking for Kubernetes: %w: run `make kube`, or set KUBEBUILDER_ASSETS", err)
	}
	return dir, nil
}

// Root is the directory of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
