// Package kube starts a Kubernetes control plane for tests: etcd and kube-apiserver, with the definitions of config/crd,
// on loopback addresses and free ports. There is no kubelet: pods stay as tests leave them.
//
// The programs come from KUBEBUILDER_ASSETS, or from bin/kube, which `make kube` fills.
package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Cluster is a running control plane.
type Cluster struct {
	// Config reaches it as an administrator.
	Config *rest.Config

	env *envtest.Environment
}

// Start starts a control plane. Whoever started it must Stop it.
func Start() (*Cluster, error) {
	assets, err := Assets()
	if err != nil {
		return nil, err
	}
	c := &Cluster{env: &envtest.Environment{
		BinaryAssetsDirectory: assets,
		CRDDirectoryPaths:     []string{filepath.Join(root(), "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}}
	if c.Config, err = c.env.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the control plane: %w", err), c.env.Stop())
	}
	return c, nil
}

// Stop ends all that Start started.
func (c *Cluster) Stop() error {
	if err := c.env.Stop(); err != nil {
		return fmt.Errorf("stopping the control plane: %w", err)
	}
	return nil
}

// Assets returns the directory of the programs.
func Assets() (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	dir := filepath.Join(root(), "bin", "kube")
	for _, program := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return "", fmt.Errorf("looking for %s: %w: run `make kube`, or set KUBEBUILDER_ASSETS", program, err)
		}
	}
	return dir, nil
}

// root is the directory of the repository.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
