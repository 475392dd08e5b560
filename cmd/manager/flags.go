package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/kvasir-dev/kvasir/internal/certs"
	"github.com/kvasir-dev/kvasir/internal/cli/flags"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/tokens/hub"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// options are the flags: wiring only. Behaviour is in the objects.
type options struct {
	// namespaces that the operator looks at; none for all of them.
	namespaces []string

	healthAddress, metricsAddress, metricsCerts string

	leaderElection          bool
	leaderElectionNamespace string

	pickerImage, reporterImage string
	// log levels of the pickers and reporters that the operator creates
	pickerLogLevel, reporterLogLevel string

	// hubEndpoint is the URL of the model hub for pickers; empty for none.
	hubEndpoint string
	// hubAuthorities are certificates in PEM that sign the hub's; empty for none.
	hubAuthorities string
	// hubProxy is the URL of the proxy through which pickers reach the hub; empty for none.
	hubProxy string

	// account is the operator's own, and token the file with what proves it to pickers.
	account types.NamespacedName
	token   string

	// pod is the operator's own, in the namespace of its account; empty where it runs in none.
	pod string

	kedaAddress, kedaCerts, kedaClientCA string

	logLevel  slog.Level
	logFormat string
}

// described is what the help says besides the flags.
var described = flags.Program{
	Name:    "manager",
	About:   "Manager is the operator: it brings the cluster to the state that InferencePools describe.\nDocumentation: docs/operations.md",
	Example: "manager --picker-image PICKER --reporter-image REPORTER --service-account kvasir-system/kvasir-operator",
	Groups: []flags.Group{
		{Title: "Required", Prefixes: []string{"picker-image", "reporter-image", "service-account"}},
		{Title: "Addresses", Prefixes: []string{"health-address", "metrics-", "keda-"}},
		{Title: "The cluster", Prefixes: []string{"namespace", "kubeconfig", "leader-", "pod", "token-file"}},
		{Title: "Model hub", Prefixes: []string{"hub-"}},
		{Title: "Logs", Prefixes: []string{"log-", "picker-log-level", "reporter-log-level"}},
	},
}

func parse(args []string, stdout, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("manager", flag.ContinueOnError)
	f.Bool("version", false, version.Usage)
	f.Func("namespace", "manage only the pools of this `namespace`; can be repeated. Without it, those of all namespaces", o.addNamespace)
	f.StringVar(&o.healthAddress, "health-address", ":8081", "`address` of /healthz and /readyz")
	f.StringVar(&o.metricsAddress, "metrics-address", ":8443", "`address` of /metrics, over TLS, for clients that can get the non-resource URL /metrics of the cluster; 0 for none")
	f.StringVar(&o.metricsCerts, "metrics-cert-dir", "", "`directory` with tls.crt and tls.key for /metrics, read again when they change; without it, a self-signed certificate is created at the start")
	f.BoolVar(&o.leaderElection, "leader-election", true, "act only while holding the Lease; other replicas are on standby with filled caches")
	f.StringVar(&o.leaderElectionNamespace, "leader-election-namespace", "",
		"`namespace` of the Lease; default is that of the service account")
	f.StringVar(&o.pod, "pod", "", "`name` of the operator's own pod: its Deployment becomes the owner of the Lease")
	f.StringVar(&o.pickerImage, "picker-image", "", "`image` of the pickers (required)")
	f.StringVar(&o.reporterImage, "reporter-image", "", "`image` of the reporters (required)")
	f.StringVar(&o.pickerLogLevel, "picker-log-level", "info", "log level of the pickers: error, warn, info, debug or trace")
	f.StringVar(&o.reporterLogLevel, "reporter-log-level", "info", "log level of the reporters: error, warn, info, debug or trace; new pods have it")
	f.Func("hub-endpoint", "`URL` of the model hub from which pickers download files of tokenizers of the types Auto and Hub, such as https://huggingface.co or a mirror; without it, nothing is downloaded",
		func(s string) error {
			if s == "" {
				return nil
			}
			endpoint, err := hub.ParseEndpoint(s)
			if err == nil {
				o.hubEndpoint = endpoint.String()
			}
			return err
		})
	f.StringVar(&o.hubAuthorities, "hub-ca", "", "certificates of authorities that sign the hub's, in `PEM`; pickers trust them besides those of their image")
	f.Func("hub-proxy", "`URL` of the proxy through which pickers reach the hub, http://HOST:PORT", func(s string) error {
		proxy, err := hub.ParseProxy(s)
		if err == nil {
			o.hubProxy = proxy.String()
		}
		return err
	})
	f.Func("service-account", "`NAMESPACE/NAME` of the operator's own service account, to which pickers send their state (required)",
		func(s string) error {
			namespace, name, ok := strings.Cut(s, "/")
			if !ok || namespace == "" || name == "" {
				return errors.New("want NAMESPACE/NAME")
			}
			o.account = types.NamespacedName{Namespace: namespace, Name: name}
			return nil
		})
	f.StringVar(&o.token, "token-file", "/var/run/kvasir/token", "`file` with a token of that account for the audience "+
		rpc.OperateAudience+", sent to pickers")
	f.StringVar(&o.kedaAddress, "keda-address", "", "`address` of the KEDA external scaler, which serves the recommended sizes of pools; empty for none")
	f.StringVar(&o.kedaCerts, "keda-cert-dir", "", "`directory` with tls.crt and tls.key for the KEDA scaler, read again when they change; without it, the scaler has no TLS")
	f.StringVar(&o.kedaClientCA, "keda-client-ca", "", "`file` with the CA certificates that the clients of the KEDA scaler must have a certificate of; empty admits every client")
	level := f.String("log-level", "info", "error, warn, info, debug or trace")
	f.StringVar(&o.logFormat, "log-format", logging.Text, "text or json")
	config.RegisterFlags(f) // --kubeconfig
	if err := flags.Parse(f, &described, args, stdout, stderr); err != nil {
		return nil, err
	}
	if o.leaderElectionNamespace == "" {
		o.leaderElectionNamespace = o.account.Namespace
	}
	err := o.check(f, *level)
	if err != nil {
		fmt.Fprintln(stderr, "manager:", err)
	}
	return o, err
}

func (o *options) addNamespace(name string) error {
	if reasons := validation.IsDNS1123Label(name); len(reasons) > 0 {
		return errors.New(reasons[0])
	}
	if !slices.Contains(o.namespaces, name) {
		o.namespaces = append(o.namespaces, name)
	}
	return nil
}

// check names wrong flags before missing ones: those are what the person has just written.
func (o *options) check(f *flag.FlagSet, level string) error {
	var known bool
	o.logLevel, known = logging.Levels[level]
	_, pickerKnown := logging.Levels[o.pickerLogLevel]
	_, reporterKnown := logging.Levels[o.reporterLogLevel]
	if err := o.checkHub(); err != nil {
		return fmt.Errorf("--hub-ca: %w", err)
	}
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.kedaAddress == "" && (o.kedaCerts != "" || o.kedaClientCA != ""):
		return errors.New("--keda-cert-dir and --keda-client-ca have no effect without --keda-address")
	case o.kedaCerts == "" && o.kedaClientCA != "":
		return errors.New("--keda-client-ca needs --keda-cert-dir")
	case !known:
		return fmt.Errorf("--log-level %q: want error, warn, info, debug or trace", level)
	case !pickerKnown:
		return fmt.Errorf("--picker-log-level %q: want error, warn, info, debug or trace", o.pickerLogLevel)
	case !reporterKnown:
		return fmt.Errorf("--reporter-log-level %q: want error, warn, info, debug or trace", o.reporterLogLevel)
	case o.logFormat != logging.Text && o.logFormat != logging.JSON:
		return fmt.Errorf("--log-format %q: want text or json", o.logFormat)
	case o.hubProxy != "" && o.hubEndpoint == "":
		return errors.New("--hub-proxy needs --hub-endpoint")
	case o.pickerImage == "":
		return errors.New("--picker-image is required")
	case o.reporterImage == "":
		return errors.New("--reporter-image is required")
	case o.account.Name == "":
		return errors.New("--service-account is required: pickers accept only this account")
	}
	return nil
}

// checkHub reads the certificates of the hub's authorities. No message has them: a private key can be among them by mistake.
func (o *options) checkHub() error {
	if o.hubAuthorities == "" {
		return nil
	}
	if !strings.HasPrefix(o.hubEndpoint, "https://") {
		return errors.New("it needs an https --hub-endpoint")
	}
	authorities, err := certs.ParseAuthorities(o.hubAuthorities)
	if err == nil {
		o.hubAuthorities = authorities.String()
	}
	return err
}
