// Command manager is the operator: it brings the cluster to the state that InferencePools describe, and writes the
// status of RoutingPolicies; docs/operations.md describes how to run it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	_ "golang.org/x/crypto/x509roots/fallback" // authorities, in images that have no file of them
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kvasir-dev/kvasir/internal/logging"
	"github.com/kvasir-dev/kvasir/internal/version"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	os.Exit(start(os.Args[1:], os.Stdout, os.Stderr))
}

// garbage is how much of it can gather, in percent of what is in use, before it is collected. Most of what the operator
// has in use are its caches, and it works little: memory is dearer to it than the collector's time.
const garbage = 50

// start runs the program until a signal and returns its exit status. The second signal ends it at once.
func start(args []string, stdout, stderr io.Writer) int {
	if version.Requested(args) {
		fmt.Fprintln(stdout, "manager", version.Get())
		return 0
	}
	o, err := parse(args, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // parse has said why
	}
	log := logging.New(stderr, o.logLevel, o.logFormat)
	ctrl.SetLogger(log)
	klog.SetLogger(log.V(1))
	config, err := ctrl.GetConfig()
	if err != nil {
		fmt.Fprintln(stderr, "manager: finding the cluster:", err)
		return 1
	}
	if err := run(ctrl.SetupSignalHandler(), o, config, log); err != nil {
		fmt.Fprintln(stderr, "manager:", err)
		return 1
	}
	return 0
}
