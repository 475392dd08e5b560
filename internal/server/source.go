package server

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

	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/config/cluster"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/engines/render"
)

// sourceOptions select the source of the objects: a directory, an API server, or the command line itself.
type sourceOptions struct {
	standalone  string
	engines     []string // as given
	model       string
	urls        []config.EngineURL // of engines
	poolName    string             // NAMESPACE/NAME
	gatewayPool string             // NAMESPACE/NAME
	fleetName   string             // NAMESPACE/NAME
	kubeconfig  string
	pool, fleet types.NamespacedName // pool of poolName or gatewayPool; fleet of fleetName
	indexMemory int64                // bytes that the indexes of all pools can take together; 0 for as much as the pools set
}

func (o *sourceOptions) flags(f *flag.FlagSet) {
	f.StringVar(&o.standalone, "standalone", "", "read the objects from the YAML and JSON files of this `directory`, and follow changes; this, --engines or --pool is required")
	f.Func("engines", "serve these engines, `http://HOST:PORT,...`, without any file: one pool with all defaults; needs --model", func(s string) error {
		o.engines = append(o.engines, s)
		return nil
	})
	f.StringVar(&o.model, "model", "", "`name` of the model that the engines of --engines serve, as clients name it")
	f.StringVar(&o.poolName, "pool", "", "serve this InferencePool (`NAMESPACE/NAME`) of the Kubernetes cluster, and follow it")
	f.StringVar(&o.fleetName, "fleet", "", "serve all InferencePools of the namespace that have picker.mode Fleet and name this PickerFleet (`NAMESPACE/NAME`) of the Kubernetes cluster, and follow them")
	f.StringVar(&o.gatewayPool, "gateway-pool", "", "serve this InferencePool (`NAMESPACE/NAME`) of the Gateway API Inference Extension with all defaults, if it has no InferencePool of Kvasir")
	f.Int64Var(&o.indexMemory, "index-memory", 0, "how many `bytes` the indexes of all pools can take together, besides the picker.indexMemory of each; 0 for no such bound. Where the container has a memory limit, a quarter of it is a bound, too")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`; without one, the in-cluster configuration is used")
}

// inCluster reports whether the objects are read from an API server.
func (o *sourceOptions) inCluster() bool {
	return o.poolName != "" || o.gatewayPool != "" || o.fleetName != ""
}

// onePool reports whether there is one pool, which is read from an API server.
func (o *sourceOptions) onePool() bool { return o.inCluster() && o.fleetName == "" }

// measured is the pool whose metrics are served. It has no name for a fleet, whose metrics are those of any pool of the namespace:
// for the API server that means all pools.
func (o *sourceOptions) measured() types.NamespacedName {
	if o.fleet.Name != "" {
		return types.NamespacedName{Namespace: o.fleet.Namespace}
	}
	return o.pool
}

func (o *sourceOptions) check() error {
	switch {
	case o.indexMemory < 0:
		return fmt.Errorf("--index-memory %d: want at least 0", o.indexMemory)
	case o.poolName != "" && o.gatewayPool != "":
		return errors.New("--pool and --gateway-pool exclude each other")
	case o.fleetName != "" && (o.poolName != "" || o.gatewayPool != ""):
		return errors.New("--fleet excludes --pool and --gateway-pool: a fleet serves the pools that name it")
	case o.engines != nil || o.model != "":
		return o.checkEngines()
	case o.standalone == "" && !o.inCluster():
		return errors.New("nothing to serve: want --engines http://HOST:PORT,... --model NAME, or --standalone DIR, or --pool NAMESPACE/NAME, or --fleet NAMESPACE/NAME")
	case o.standalone != "" && o.inCluster():
		return errors.New("--standalone excludes --pool, --fleet and --gateway-pool")
	case o.kubeconfig != "" && !o.inCluster():
		return errors.New("--kubeconfig needs --pool or --fleet")
	case !o.inCluster():
		return nil
	}
	flag, value, into := "--pool", o.poolName, &o.pool
	switch {
	case o.gatewayPool != "":
		flag, value = "--gateway-pool", o.gatewayPool
	case o.fleetName != "":
		flag, value, into = "--fleet", o.fleetName, &o.fleet
	}
	namespace, name, ok := strings.Cut(value, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%s %q: want NAMESPACE/NAME", flag, value)
	}
	*into = types.NamespacedName{Namespace: namespace, Name: name}
	return nil
}

// checkEngines checks --engines and --model. At least one of them is given.
func (o *sourceOptions) checkEngines() (err error) {
	switch {
	case o.engines == nil:
		return errors.New("--model needs --engines http://HOST:PORT,...; in files and clusters, the InferencePool names the model")
	case o.standalone != "" || o.inCluster():
		return errors.New("--engines excludes --standalone, --pool, --fleet and --gateway-pool: they name engines, too")
	case o.kubeconfig != "":
		return errors.New("--kubeconfig needs --pool or --fleet")
	}
	if o.urls, err = config.ParseEngineURLs(strings.Join(o.engines, ",")); err != nil {
		return fmt.Errorf("--engines: %w", err)
	}
	if o.model == "" {
		return fmt.Errorf("--engines needs --model NAME, the model's name in requests; GET %s lists it", o.urls[0].Path("/v1/models"))
	}
	return nil
}

// source follows the objects: it calls back with the state at first, and after each change.
type source interface {
	Follow(ctx context.Context, onChange func(config.State))
}

// files is a source that can be read without following it.
type files interface {
	source
	Load(ctx context.Context) (state config.State, changed bool)
}

// open opens the source.
func (o *sourceOptions) open(access *rest.Config, settings config.Settings, log logr.Logger) (source, error) {
	if o.urls != nil {
		return config.NewEngines(o.urls, o.model, settings, log)
	}
	if !o.inCluster() {
		return config.NewDirectory(o.standalone, settings, log)
	}
	return cluster.New(cluster.Options{
		Config: access, Pool: o.pool, Fleet: o.fleet, Bare: o.gatewayPool != "", ModelOf: modelOf, Settings: settings, Log: log,
	})
}

// modelOf asks the engine at an address for the name of its model.
func modelOf(ctx context.Context, address string, wire endpoint.Wire) (string, error) {
	client := render.New(render.Options{})
	defer client.Close()
	return client.Model(ctx, &endpoint.Endpoint{Address: address, Wire: wire}, "")
}

// config returns how to reach the cluster; nil for none.
func (o *sourceOptions) config(log logr.Logger) (*rest.Config, error) {
	if !o.inCluster() {
		return nil, nil
	}
	klog.SetLogger(log.WithName("kubernetes"))
	config, err := o.access()
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	config.QPS, config.Burst = requestsPerSecond, requestBurst
	return config, nil
}

// requestsPerSecond and requestBurst bound the questions to the API server: about Secrets and ConfigMaps of a fleet's pools, and the
// rights of clients of the metrics. The defaults, 5 and 10, would make a fleet of 50 pools wait 20 seconds for its key roots.
const requestsPerSecond, requestBurst = 50, 200

// access returns how to reach the cluster.
func (o *sourceOptions) access() (*rest.Config, error) {
	if o.kubeconfig != "" {
		return clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("%w; --kubeconfig says how to from outside", err)
	}
	return config, nil
}
