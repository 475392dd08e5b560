package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cli/flags"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/reporter"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/version"
)

// options are the flags: wiring only. The pickers send the parameters of the keys.
type options struct {
	config reporter.Config

	pickers, pickerService      string
	tls                         rpc.Files
	serverName                  string
	tokenFile, secretFile       string
	insecure                    bool
	drainAddress, engineMetrics string
	engineTLS                   endpoint.Wire // without the CA, which is read from engineCA whenever it is needed
	engineCA                    string
	drainSettle, drainDeadline  time.Duration
	statusAddress               string
	logLevel                    slog.Level
	logFormat                   string
	gcPercent, memoryLimit      int
	poolPort                    poolPort
}

// podUID is the environment variable that names the pod when no flag does, set by the downward API.
const podUID = "POD_UID"

// later returns the value of the environment variable for a flag that earlier releases do not have, KVASIR_ and its name. The operator
// sets these and not the flags: a reporter of an earlier release, to which a running pod can be changed back, would not start with
// a flag that it does not know.
func later(name string) string {
	return os.Getenv("KVASIR_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
}

// described is what the help says besides the flags.
var described = flags.Program{
	Name:    "reporter",
	About:   "Reporter is the sidecar beside an engine: it mirrors what the engine caches and reports it to every picker.\nDocumentation: docs/reporter.md",
	Example: "reporter --pod $POD_UID --events-connect 127.0.0.1:5557 --picker-service demo-picker-peers.llm.svc:9004 --token-file TOKEN --picker-ca CA",
	Groups: []flags.Group{
		{Title: "The engine", Prefixes: []string{"engine", "first-rank", "ranks", "events-", "replay", "model-", "pod"}},
		{Title: "The pickers", Prefixes: []string{"picker", "client-", "token-file", "secret-file", "insecure"}},
		{Title: "The end of the pod", Prefixes: []string{"drain-"}},
		{Title: "The pool's port", Prefixes: []string{"serve-"}},
		{Title: "The process", Prefixes: []string{"state-dir", "status-address", "log-", "gc-percent", "memory-limit", "version"}},
	},
}

func parse(args []string, stdout, stderr io.Writer) (*options, error) {
	o := &options{}
	c := &o.config
	f := flag.NewFlagSet("reporter", flag.ContinueOnError)
	f.Bool("version", false, version.Usage)
	f.StringVar(&c.Pod, "pod", os.Getenv(podUID), "UID of the pod, or namespace/name where pods have no UID; default $"+podUID)
	f.StringVar(&c.Engine, "engine", "VLLM", "VLLM or SGLang")
	f.IntVar(&c.FirstRank, "first-rank", 0, "number of the engine's first data-parallel rank in this pod")
	f.IntVar(&c.Ranks, "ranks", 1, "data-parallel ranks in this pod")
	f.StringVar(&c.Listen, "events-listen", "", "`host:port` where the engine's event publisher connects; the rank is added to the port")
	f.StringVar(&c.Subscribe, "events-connect", "", "`host:port` where the engine's event publisher listens; the rank is added to the port")
	f.StringVar(&c.Replay, "replay", "", "`host:port` of the engine's replay socket; the rank is added to the port")
	f.StringVar(&c.StateDir, "state-dir", "", "`directory` on an in-memory volume, where mirrors survive a restart of the process")
	f.StringVar(&c.Model.Dir, "model-dir", "", "`directory` with the model's tokenizer, configuration and chat template, which pickers can request; never its weights")
	f.StringVar(&c.Model.Cache, "model-cache", later("model-cache"), "`directory` of a model hub's cache (HF_HUB_CACHE) with these files, in place of --model-dir")
	f.StringVar(&c.Model.Repository.Name, "model-repository", later("model-repository"), "`ORGANIZATION/NAME` of the model in --model-cache")
	f.StringVar(&c.Model.Repository.Revision, "model-revision", later("model-revision"), "`revision` of it; default is main")
	f.StringVar(&c.Model.Root, "model-root", later("model-root"), "`directory` that links among these files must not lead out of, such as the volume's; default is the model's directory")
	f.StringVar(&o.pickers, "pickers", "", "`host:port,...` of all picker replicas")
	f.StringVar(&o.pickerService, "picker-service", "", "`name:port` that resolves to all picker replicas")
	f.StringVar(&o.tls.CA, "picker-ca", "", "`file` with the CA of the pickers' certificates; read again when it changes")
	f.StringVar(&o.serverName, "picker-name", "", "DNS `name` in the pickers' certificates; default is the name of --picker-service")
	f.StringVar(&o.tls.Cert, "client-cert", "", "`file` with a client certificate that names the pod")
	f.StringVar(&o.tls.Key, "client-key", "", "`file` with its key")
	f.StringVar(&o.tokenFile, "token-file", "", "`file` with a service account token bound to the pod, audience "+rpc.Audience)
	f.StringVar(&o.secretFile, "secret-file", "", "`file` with a secret shared with the pickers")
	f.BoolVar(&o.insecure, "insecure", false, "no TLS; for a single machine")
	f.StringVar(&o.drainAddress, "drain-address", "", "`address` of the wait endpoint, such as :9445")
	f.StringVar(&o.engineMetrics, "engine-metrics", "http://127.0.0.1:8000/metrics",
		"`URL` of the engine's metrics; a comma-separated list if each rank has its own port")
	f.StringVar(&o.engineTLS.ServerName, "engine-name", "", "DNS `name` in the engine's certificate, for an https URL")
	f.StringVar(&o.engineCA, "engine-ca", "", "`file` with the CA of that certificate; default is the system's trust store")
	f.BoolVar(&o.engineTLS.Unchecked, "engine-unchecked", false, "do not check that certificate")
	f.DurationVar(&o.drainSettle, "drain-settle", reporter.DefaultWaitSettle,
		"longest time from a pick to the request's arrival at the engine")
	f.DurationVar(&o.drainDeadline, "drain-deadline", reporter.DefaultWaitDeadline, "the longest wait for an idle engine")
	port := &o.poolPort
	f.StringVar(&port.address, "serve-address", "",
		"`address` of the pool's port, such as :8000, in a pod that decodes, for policies with sidecar: Kvasir")
	f.StringVar(&port.engine, "serve-engine", "", "`URL` of the engine to which its requests pass, such as http://127.0.0.1:8200")
	f.StringVar(&port.certs.Cert, "serve-cert", "",
		"`file` with the certificate of that port; then engines that prefill are asked over TLS, too")
	f.StringVar(&port.certs.Key, "serve-key", "", "`file` with its key")
	f.IntVar(&port.memory, "serve-memory", 64, "`MiB` of request bodies that are held; others pass as they arrive, and are not handed over")
	f.IntVar(&port.requests, "serve-requests", 4096, "requests that can be under way; others get 503")
	f.StringVar(&o.statusAddress, "status-address", "127.0.0.1:9446", "`address` of /healthz, /status and /metrics; empty for none")
	level := f.String("log-level", "info", "error, warn, info, debug or trace")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.IntVar(&o.gcPercent, "gc-percent", 40, "GOGC of the Go garbage collector")
	f.IntVar(&o.memoryLimit, "memory-limit", 48, "the Go runtime's soft memory limit, in `MiB`; above it, garbage collection runs more often")
	if err := flags.Parse(f, &described, args, stdout, stderr); err != nil {
		return nil, err
	}
	err := o.check(f, *level)
	if err != nil {
		fmt.Fprintln(stderr, "reporter:", err)
	}
	return o, err
}

func (o *options) check(f *flag.FlagSet, level string) error {
	var ok bool
	o.logLevel, ok = logging.Levels[level]
	proofs := 0
	for _, v := range []string{o.tokenFile, o.secretFile, o.tls.Cert} {
		if v != "" {
			proofs++
		}
	}
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !ok:
		return fmt.Errorf("--log-level %q: want error, warn, info, debug or trace", level)
	case o.logFormat != "text" && o.logFormat != "json":
		return fmt.Errorf("--log-format %q: want text or json", o.logFormat)
	case o.config.Engine != "VLLM" && o.config.Engine != "SGLang":
		return fmt.Errorf("--engine %q: want VLLM or SGLang", o.config.Engine)
	case o.config.Pod == "":
		return errors.New("--pod, or " + podUID + " in the environment, is required")
	case o.pickers != "" && o.pickerService != "":
		return errors.New("--pickers and --picker-service exclude each other")
	case o.pickers == "" && o.pickerService == "":
		return errors.New("either --pickers or --picker-service is required")
	case o.config.Listen != "" && o.config.Subscribe != "":
		return errors.New("--events-listen and --events-connect exclude each other: the engine dials, or the reporter does")
	case o.config.Listen == "" && o.config.Subscribe == "":
		return errors.New("either --events-listen or --events-connect is required")
	case o.config.Model.Dir != "" && o.config.Model.Cache != "":
		return errors.New("--model-dir and --model-cache exclude each other")
	case (o.config.Model.Cache == "") != (o.config.Model.Repository.Name == ""):
		return errors.New("--model-cache and --model-repository need each other")
	case proofs > 1:
		return errors.New("--token-file, --secret-file and --client-cert exclude each other")
	case o.engineTLS.Unchecked && (o.engineCA != "" || o.engineTLS.ServerName != ""):
		return errors.New("--engine-unchecked excludes --engine-name and --engine-ca")
	case o.insecure && (o.tls != rpc.Files{} || o.tokenFile != ""):
		return errors.New("--insecure excludes certificates and service account tokens")
	}
	if err := o.useless(f); err != nil {
		return err
	}
	if err := o.find(); err != nil {
		return err
	}
	if err := o.poolPort.check(); err != nil {
		return err
	}
	return o.dial()
}

// useless refuses flags that would have no effect beside the others.
func (o *options) useless(f *flag.FlagSet) (err error) {
	https := strings.Contains(o.engineMetrics, "https://") || strings.Contains(o.poolPort.engine, "https://") || o.poolPort.certs.Cert != ""
	f.Visit(func(given *flag.Flag) {
		why := ""
		switch given.Name {
		case "drain-settle", "drain-deadline":
			if o.drainAddress == "" {
				why = "needs --drain-address: without it, no pod waits"
			}
		case "picker-name":
			if o.insecure {
				why = "is for TLS, which --insecure switches off"
			}
		case "engine-name", "engine-ca", "engine-unchecked":
			if !https {
				why = "is for TLS; neither --engine-metrics nor --serve-engine has an https URL"
			}
		case "model-revision":
			if o.config.Model.Cache == "" {
				why = "needs --model-cache"
			}
		case "model-root":
			if !o.config.Model.Named() {
				why = "needs --model-dir or --model-cache"
			}
		case "model-repository":
			if checkErr := o.config.Model.Repository.Check(); checkErr != nil {
				why = "and --model-revision: " + checkErr.Error()
			}
		case "client-key":
			if o.tls.Cert == "" {
				why = "needs --client-cert"
			}
		case "client-cert":
			if o.tls.Key == "" {
				why = "needs --client-key"
			}
		case "serve-memory", "serve-requests":
			if o.poolPort.address == "" {
				why = "needs --serve-address"
			}
		case "events-listen", "events-connect", "replay":
			if _, _, splitErr := net.SplitHostPort(given.Value.String()); splitErr != nil && given.Value.String() != "" {
				why = fmt.Sprintf("%q is not HOST:PORT", given.Value)
			}
		case "engine-metrics":
			for one := range strings.SplitSeq(o.engineMetrics, ",") {
				if u, parseErr := url.Parse(one); one != "" && (parseErr != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
					why = fmt.Sprintf("%q is not http://HOST:PORT/metrics", one)
				}
			}
		case "first-rank", "ranks":
			if n, _ := strconv.Atoi(given.Value.String()); n < 0 || n < 1 && given.Name == "ranks" {
				why = "must not be " + given.Value.String()
			}
		}
		if why != "" && err == nil {
			err = fmt.Errorf("--%s %s", given.Name, why)
		}
	})
	return err
}

// find settles where pickers are.
func (o *options) find() (err error) {
	if o.pickers != "" {
		addrs := strings.Split(o.pickers, ",")
		for _, addr := range addrs {
			if _, _, err := net.SplitHostPort(addr); err != nil {
				return fmt.Errorf("--pickers: %w", err)
			}
		}
		o.config.Pickers = rpc.List(addrs...)
		return nil
	}
	if o.config.Pickers, err = rpc.Lookup(net.DefaultResolver, o.pickerService); err != nil {
		return fmt.Errorf("--picker-service: %w", err)
	}
	if host, _, err := net.SplitHostPort(o.pickerService); err == nil && o.serverName == "" {
		o.serverName = host
	}
	return nil
}

// dial settles how pickers are spoken to.
func (o *options) dial() (err error) {
	d := &o.config.Dial
	switch {
	case o.secretFile != "":
		d.Token = rpc.SecretFile(o.secretFile)
	case o.tokenFile != "":
		d.Token = rpc.SecretFile(o.tokenFile)
	}
	if o.insecure {
		d.TokenInClear = true
		return nil
	}
	d.Credentials, err = rpc.ClientTLS(o.tls, o.serverName)
	return err
}
