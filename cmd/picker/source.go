package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kvasir-dev/kvasir/internal/watch"
	"github.com/kvasir-dev/kvasir/internal/watch/cluster"
)

// sourceOptions say where the objects come from: a directory, or an API server.
type sourceOptions struct {
	standalone string
	poolName   string // NAMESPACE/NAME
	kubeconfig string
	pool       types.NamespacedName // of poolName
}

func (o *sourceOptions) flags(f *flag.FlagSet) {
	f.StringVar(&o.standalone, "standalone", "", "read the objects from the YAML and JSON files of this `directory`, and follow changes; this or --pool is required")
	f.StringVar(&o.poolName, "pool", "", "serve this InferencePool (`NAMESPACE/NAME`) of the Kubernetes cluster, and follow it")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how to reach the cluster; without one the picker runs in it")
}

// inCluster tells whether the objects come from an API server.
func (o *sourceOptions) inCluster() bool { return o.poolName != "" }

func (o *sourceOptions) check() error {
	switch {
	case o.standalone == "" && o.poolName == "":
		return errors.New("--standalone DIR or --pool NAMESPACE/NAME is required: the objects come from a directory or from a cluster")
	case o.standalone != "" && o.poolName != "":
		return errors.New("--standalone and --pool exclude each other")
	case o.kubeconfig != "" && o.poolName == "":
		return errors.New("--kubeconfig needs --pool")
	case o.poolName == "":
		return nil
	}
	namespace, name, ok := strings.Cut(o.poolName, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("--pool %q: want NAMESPACE/NAME", o.poolName)
	}
	o.pool = types.NamespacedName{Namespace: namespace, Name: name}
	return nil
}

// source follows the objects: it calls back with the state at first, and after each change.
type source interface {
	Follow(ctx context.Context, onChange func(watch.State))
}

// open opens the source.
func (o *sourceOptions) open(config *rest.Config, settings watch.Settings, log logr.Logger) (source, error) {
	if !o.inCluster() {
		return watch.NewDirectory(o.standalone, settings, log)
	}
	return cluster.New(cluster.Options{Config: config, Pool: o.pool, Settings: settings, Log: log})
}

// config says how to reach the cluster; nil for none.
func (o *sourceOptions) config(log logr.Logger) (*rest.Config, error) {
	if !o.inCluster() {
		return nil, nil
	}
	klog.SetLogger(log.WithName("kubernetes"))
	if o.kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("reaching the cluster: %w; --kubeconfig says how to from outside", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	return config, nil
}
