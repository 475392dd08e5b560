package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/cli/console"
	"github.com/kvasir-dev/kvasir/internal/cli/fleet"
	"github.com/kvasir-dev/kvasir/internal/cli/live"
	"github.com/kvasir-dev/kvasir/internal/cli/view"
)

// cluster is what commands that ask a cluster have in common.
type cluster struct {
	std    stdio
	config clientcmd.ClientConfig
	// overrides are the values of flags.
	overrides *clientcmd.ConfigOverrides
	format    console.Format

	picker, account string
}

// shown are the flags of kubectl that the help lists; the others work as well.
var shown = []string{"namespace", "context", "kubeconfig"}

// newCluster adds kubectl's flags to a command.
func newCluster(c *cobra.Command, std stdio) *cluster {
	klog.SetOutput(io.Discard) // failures of libraries are returned as errors
	klog.LogToStderr(false)
	files := clientcmd.NewDefaultClientConfigLoadingRules()
	k := &cluster{std: std, overrides: &clientcmd.ConfigOverrides{}, format: console.Table}
	k.config = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(files, k.overrides)
	own, set := c.Flags(), pflag.NewFlagSet("kubectl", pflag.ContinueOnError)
	set.StringVar(&files.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "file that says how clusters are reached")
	clientcmd.BindOverrideFlags(k.overrides, set, clientcmd.RecommendedConfigOverrideFlags(""))
	set.VisitAll(func(f *pflag.Flag) {
		f.Hidden = !slices.Contains(shown, f.Name)
		own.AddFlag(f)
	})
	command.Ensure(c.RegisterFlagCompletionFunc("namespace", k.complete(namespaces)))
	command.Ensure(c.RegisterFlagCompletionFunc("context", k.contexts))
	return k
}

// outputs adds -o, with formats beside those that every document has.
func (k *cluster) outputs(c *cobra.Command, also ...console.Format) {
	command.Output(c, &k.format, also...)
}

// pickers adds the flags of commands that ask pickers.
func (k *cluster) pickers(c *cobra.Command) {
	c.Flags().StringVar(&k.picker, "picker", "", "`URL` of a picker's metrics address, such as http://127.0.0.1:9090; then no cluster is asked")
	c.Flags().StringVar(&k.account, "service-account", live.DefaultAccount,
		"service account in the pool's namespace, or in the operator's, whose token is sent to the pickers")
	command.Ensure(c.RegisterFlagCompletionFunc("service-account", k.complete(accounts)))
	command.Ensure(c.RegisterFlagCompletionFunc("picker", cobra.NoFileCompletions))
}

// connect returns a client of the cluster, how it is reached, and the namespace that is meant.
func (k *cluster) connect() (client.Client, *rest.Config, string, error) {
	namespace, _, err := k.config.Namespace()
	if clientcmd.IsEmptyConfig(err) {
		return nil, nil, "", errors.New("no kubeconfig found: set KUBECONFIG or --kubeconfig; for a picker without a cluster, use --picker URL")
	}
	if err != nil {
		return nil, nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config, err := k.config.ClientConfig()
	if err != nil {
		return nil, nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{}
	c, err := fleet.NewClient(config)
	return c, config, namespace, err
}

// source connects to the cluster and the pickers in it, or to the one picker that was named.
func (k *cluster) source() (*view.Source, string, error) {
	if k.picker != "" {
		p, err := live.At(k.picker)
		if err != nil {
			return nil, "", command.Usage("--picker: %v", err)
		}
		return &view.Source{Picker: p}, "", nil
	}
	c, config, namespace, err := k.connect()
	if err != nil {
		return nil, "", err
	}
	dial, err := live.Forward(config)
	if err != nil {
		return nil, "", err
	}
	return &view.Source{Client: c, Access: &live.Access{Client: c, Config: config, Dial: dial, Account: k.account}}, namespace, nil
}

// pickersOf connects to the pickers of a pool; of the namespace's only pool if pool is empty.
func (k *cluster) pickersOf(ctx context.Context, pool string) ([]*live.Picker, error) {
	source, namespace, err := k.source()
	if err != nil {
		return nil, err
	}
	return source.Pickers(ctx, namespace, pool)
}

// print writes an answer in the format that was asked for.
func (k *cluster) print(v any, lines func() []string) error {
	return k.std.Print(k.format, v, func() error {
		_, err := fmt.Fprintln(k.std.Out, strings.Join(lines(), "\n"))
		return err
	})
}

// completeTimeout bounds what a shell waits for.
const completeTimeout = 3 * time.Second

// names are what completes a command line.
type names func(ctx context.Context, c client.Client, namespace string) []string

// complete asks the cluster. What cannot be found out completes nothing.
func (k *cluster) complete(find names) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		k.overrides.Timeout = completeTimeout.String()
		cl, _, namespace, err := k.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), completeTimeout)
		defer cancel()
		return find(ctx, cl, namespace), cobra.ShellCompDirectiveNoFileComp
	}
}

// one completes a single argument.
func (k *cluster) one(find names) cobra.CompletionFunc {
	complete := k.complete(find)
	return func(c *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(c, args, part)
	}
}

func poolNames(ctx context.Context, c client.Client, namespace string) (out []string) {
	pools, err := fleet.Pools(ctx, c, namespace)
	if err != nil {
		return nil
	}
	for i := range pools {
		out = append(out, pools[i].Name+"\t"+string(pools[i].Spec.Model.Name))
	}
	return out
}

func podNames(ctx context.Context, c client.Client, namespace string) (out []string) {
	pools, err := fleet.Pools(ctx, c, namespace)
	if err != nil {
		return nil
	}
	for i := range pools {
		pods, err := fleet.Pods(ctx, c, &pools[i])
		if err != nil {
			return nil
		}
		for j := range pods {
			out = append(out, pods[j].Name+"\tof "+pools[i].Name)
		}
	}
	return out
}

// contexts completes the names of the kubeconfig's contexts.
func (k *cluster) contexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	raw, err := k.config.RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for name, c := range raw.Contexts {
		out = append(out, name+"\tcluster "+c.Cluster)
	}
	slices.Sort(out)
	return out, cobra.ShellCompDirectiveNoFileComp
}

func accounts(ctx context.Context, c client.Client, namespace string) (out []string) {
	var list corev1.ServiceAccountList
	if c.List(ctx, &list, client.InNamespace(namespace)) != nil {
		return nil
	}
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	return out
}

func namespaces(ctx context.Context, c client.Client, _ string) (out []string) {
	var list corev1.NamespaceList
	if c.List(ctx, &list) != nil {
		return nil
	}
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	return out
}

// argument makes a command take exactly one, or at most one.
func argument(c *cobra.Command, name string, optional bool) {
	c.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) > 1:
			return command.Usage("unexpected argument %q", args[1])
		case len(args) == 0 && !optional:
			return command.Usage("the %s is missing", name)
		}
		return nil
	}
}

// open opens a file; - is the standard input.
func (k *cluster) open(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(k.std.In), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return f, nil
}

// namespace to use; "default" where none is set.
func (k *cluster) namespace() string {
	if namespace, _, err := k.config.Namespace(); err == nil && namespace != "" {
		return namespace
	}
	return corev1.NamespaceDefault
}
