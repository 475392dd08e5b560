package server

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cli/flags"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/decisionlog"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// options are the flags: wiring only. Behaviour is in the objects.
type options struct {
	source sourceOptions

	proxyAddress, healthAddress, metricsAddress string
	proxyTLS                                    proxyTLSOptions
	gateways                                    gatewayOptions

	// eventsAddress is where the publishers of pools whose engines dial the picker connect.
	eventsAddress string

	reports  reportOptions
	peers    peerOptions
	operator operatorOptions
	tracing  tracingOptions
	hub      hubOptions

	keyFile, modelRoot string

	logLevel     slog.Level
	logFormat    string
	drainTimeout time.Duration
	lameDuck     time.Duration
	metricsOpen  bool
	metricsHosts []string // public names of open metrics, in lower case
	pprof        bool
	validate     bool

	island    string
	decisions decisionlog.Options
	usage     usageOptions
}

// described is what the help says besides the flags.
var described = flags.Program{
	Name: "picker",
	About: "Picker chooses an engine for each inference request and serves the requests, as a reverse proxy or behind a gateway.\n" +
		"Documentation: docs/standalone.md",
	Example: "picker --engines http://gpu-1:8000,http://gpu-2:8000 --model NAME",
	Groups: []flags.Group{
		{Title: "What is served", Prefixes: []string{
			"engines", "model", "standalone", "validate", "pool", "fleet", "gateway-pool", "kubeconfig", "key-file", "island", "index-memory"}},
		{Title: "Addresses", Prefixes: []string{"proxy-", "health-address", "metrics-", "events-address"}},
		{Title: "Logs and traces", Prefixes: []string{"log-", "decision-log", "usage-", "tracing-", "pprof", "compat-metrics"}},
		{Title: "Model hub", Prefixes: []string{"hub-"}},
		{Title: "Start and end", Prefixes: []string{"lame-duck", "drain-timeout", "version"}},
		{Title: "Gateways", Prefixes: []string{"ext-proc"}},
		{Title: "Reporters", Prefixes: []string{"report-"}},
		{Title: "Other replicas and the operator", Prefixes: []string{"peers", "operator", "name"}},
	},
}

func parse(args []string, stdout, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("picker", flag.ContinueOnError)
	level := o.flags(f)
	if err := flags.Parse(f, &described, args, stdout, stderr); err != nil {
		return nil, err
	}
	err := o.check(f, *level)
	if err != nil {
		fmt.Fprintln(stderr, "picker:", err)
	}
	return o, err
}

// flags defines the flags. It returns the log level, which check translates.
func (o *options) flags(f *flag.FlagSet) (level *string) {
	f.Bool("version", false, version.Usage)
	o.source.flags(f)
	f.BoolVar(&o.validate, "validate", false, "check the objects of --standalone or --engines and exit: 0 if all of them would be applied, 1 with a line for each problem")
	f.StringVar(&o.proxyAddress, "proxy-address", ":8080", "`address` where requests are served; empty for none"+loopback)
	o.proxyTLS.flags(f)
	g := &o.gateways
	f.StringVar(&g.address, "ext-proc-address", ":9002", "`address` of the endpoint picker for gateways; the model of a request selects the pool; empty for none"+loopback)
	f.Func("ext-proc", "serve gateways for one pool at an address of its own, as `NAMESPACE/POOL=ADDRESS`; can be repeated", g.add)
	f.BoolVar(&g.plaintext, "ext-proc-plaintext", false, "serve gateways without TLS")
	f.StringVar(&g.tls.Cert, "ext-proc-cert", "", "`file` with the certificate for gateways; without one, a self-signed certificate is created at the start")
	f.StringVar(&g.tls.Key, "ext-proc-key", "", "`file` with its key")
	f.StringVar(&g.service, "ext-proc-service", "", "`name` of the Service, as SERVICE.NAMESPACE, for a certificate made at the start")
	f.IntVar(&g.maxMessage, "ext-proc-max-message", 257<<20, "largest message of a gateway in `bytes`; must be above the pools' maxRequestBody")
	f.DurationVar(&g.age, "ext-proc-connection-age", 5*time.Minute, "maximum age of a gateway connection: the gateway then reconnects, so that it finds all replicas; its requests continue")
	f.BoolVar(&g.compat, "compat-metrics", false, "also export metrics under the names that dashboards of inference gateways use")
	f.StringVar(&o.healthAddress, "health-address", ":9003", "`address` of /healthz and /readyz, and of gRPC health checks"+loopback)
	f.StringVar(&o.metricsAddress, "metrics-address", ":9090", "`address` of /metrics, of /status and other diagnostics, and of a page that shows them"+loopback)
	f.BoolVar(&o.metricsOpen, "metrics-open", false, "serve metrics without TLS and without authentication in a cluster; otherwise clients need the right to get inferencepools/metrics there")
	f.Func("metrics-host", "serve metrics without authentication also under this `name`; otherwise only under addresses, names without dots, and names that end as those of clusters and private networks do (.svc, .cluster.local, .internal); can be repeated", func(name string) error {
		o.metricsHosts = append(o.metricsHosts, hostName(name))
		return nil
	})
	f.StringVar(&o.eventsAddress, "events-address", ":5557", "`address` for the event publishers of engines in pools with the source Listen; rank r connects to the port + r. It is opened only for such pools")
	r := &o.reports
	f.StringVar(&r.address, "report-address", ":9004", "`address` for reporters and peers; reports are accepted only if a flag configures how reporters authenticate")
	f.StringVar(&r.tls.Cert, "report-cert", "", "`file` with the certificate for reporters; read again when it changes, like all files of certificates and secrets")
	f.StringVar(&r.tls.Key, "report-key", "", "`file` with its key")
	f.StringVar(&r.secretFile, "report-secret-file", "", "`file` with a secret of at least 16 bytes that reporters send")
	f.StringVar(&r.tls.CA, "report-client-ca", "", "`file` with the CA of reporters' certificates, which name their pods")
	f.StringVar(&r.keys, "report-keys", "", "`file` or https URL of the keys (JWKS) that verify the service account tokens of reporters")
	f.StringVar(&r.keysToken, "report-keys-token", "", "`file` with the picker's own token, to fetch the URL")
	f.StringVar(&r.keysCA, "report-keys-ca", "", "`file` with the CA of the URL")
	f.StringVar(&r.issuer, "report-issuer", "", "issuer of the tokens; default is the issuer of the picker's own token")
	f.StringVar(&r.audience, "report-audience", rpc.Audience, "audience of the tokens")
	f.BoolVar(&r.insecure, "report-insecure", false, "accept reports without TLS, and from every client unless a secret is set; for a single machine")
	o.peers.flags(f)
	o.operator.flags(f)
	o.tracing.flags(f)
	f.StringVar(&o.keyFile, "key-file", "", "`file` with at least 32 random bytes, the key root of pools without a Secret; without it the root is random, and replicas share no keys")
	f.StringVar(&o.modelRoot, "model-root", "", "root `directory` of tokenizers of type Directory")
	o.hub.flags(f)
	level = f.String("log-level", "info", "error, warn, info, debug (a line per request) or trace")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 30*time.Second, "how long running requests can continue after SIGTERM or SIGINT")
	f.DurationVar(&o.lameDuck, "lame-duck", time.Second, "how long new requests are still accepted after that signal, while /readyz answers 503; the drain timeout begins afterwards")
	f.BoolVar(&o.pprof, "pprof", false, "serve /debug/pprof on the metrics address: in a cluster to clients with the right to get inferencepools/metrics, elsewhere to those of this machine")
	f.StringVar(&o.island, "island", "", "the island of this picker, as pools name it; without it, the picker is as far from each island as the pools define")
	f.StringVar(&o.decisions.Dir, "decision-log", "", "`directory` for records of decisions and their outcomes, for the share of requests that policies set (decisions.logPercent); empty for none")
	f.Int64Var(&o.decisions.FileBytes, "decision-log-bytes", 64<<20, "size at which a new file of that log begins")
	f.IntVar(&o.decisions.Files, "decision-log-files", 4, "number of its files that are kept")
	o.usage.flags(f)
	return level
}

func (o *options) check(f *flag.FlagSet, level string) error {
	var known bool
	o.logLevel, known = logging.Levels[level]
	if _, _, err := splitAddress(o.eventsAddress); err != nil {
		return fmt.Errorf("--events-address: %w", err)
	}
	switch {
	case f.NArg() > 0:
		return unexpected(f.Arg(0))
	case !known:
		return fmt.Errorf("--log-level %q: want error, warn, info, debug or trace", level)
	case o.logFormat != "text" && o.logFormat != "json":
		return fmt.Errorf("--log-format %q: want text or json", o.logFormat)
	case o.decisions.FileBytes < 1<<10 || o.decisions.Files < 1:
		return errors.New("--decision-log-bytes, --decision-log-files: want at least 1024 and 1")
	case o.usage.FileBytes < 1<<10 || o.usage.Files < 1:
		return errors.New("--usage-log-bytes, --usage-log-files: want at least 1024 and 1")
	case o.drainTimeout < 0:
		return fmt.Errorf("--drain-timeout %s: want at least 0", o.drainTimeout)
	case o.lameDuck < 0:
		return fmt.Errorf("--lame-duck %s: want at least 0", o.lameDuck)
	}
	if err := o.source.check(); err != nil {
		return err
	}
	o.bindLocally(f)
	if o.validate && o.source.inCluster() {
		return errors.New("--validate needs --standalone or --engines: a cluster checks its objects when they are applied")
	}
	if err := o.operator.check(); err != nil {
		return err
	}
	if err := o.proxyTLS.check(); err != nil {
		return err
	}
	if err := o.gateways.check(); err != nil {
		return err
	}
	if err := o.tracing.check(); err != nil {
		return err
	}
	if err := checkCollector("usage-endpoint", o.usage.endpoint); err != nil {
		return err
	}
	if err := o.hub.check(); err != nil {
		return err
	}
	if err := o.reports.check(); err != nil {
		return err
	}
	return o.peers.check(&o.reports)
}

// checkModelRoot checks that the root of tokenizers is a directory, if one is given: a path with a typo would show only in the
// conditions of pools.
func checkModelRoot(path string) error {
	if path == "" {
		return nil
	}
	info, err := os.Stat(path)
	if pathErr := (*os.PathError)(nil); errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	switch {
	case err != nil:
		return fmt.Errorf("--model-root %s: %w", path, err)
	case !info.IsDir():
		return fmt.Errorf("--model-root %s: not a directory", path)
	}
	return nil
}

// settings are what objects are translated with, and the key root.
func (o *options) settings(root []byte) config.Settings {
	return config.Settings{ModelRoot: o.modelRoot, Hub: o.hub.wanted(), Root: root}
}

// loopback is added to the help of addresses that bindLocally changes.
const loopback = "; outside a cluster this port is on 127.0.0.1"

// bindLocally leaves addresses whose clients do not authenticate to this machine, where the picker does not run for a cluster
// and no flag gives them.
func (o *options) bindLocally(f *flag.FlagSet) {
	if o.source.inCluster() {
		return
	}
	given := map[string]bool{}
	f.Visit(func(one *flag.Flag) { given[one.Name] = true })
	addresses := map[string]*string{"proxy-address": &o.proxyAddress, "ext-proc-address": &o.gateways.address,
		"health-address": &o.healthAddress, "metrics-address": &o.metricsAddress}
	if o.reports.insecure {
		addresses["report-address"] = &o.reports.address
	}
	for name, address := range addresses {
		if !given[name] {
			*address = "127.0.0.1" + *address
		}
	}
}

// unexpected explains an argument that belongs to no flag.
func unexpected(argument string) error {
	if strings.Contains(argument, "://") {
		return fmt.Errorf("unexpected argument %q; separate the engines of --engines by commas, without spaces", argument)
	}
	return fmt.Errorf("unexpected argument %q", argument)
}
