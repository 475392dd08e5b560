// Command manager is the operator: it brings the cluster to what InferencePools and RoutingPolicies say.
package main

import (
	"flag"
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() { os.Exit(start(os.Args[1:])) }

// start runs the program until a signal and returns its exit status.
func start(args []string) int {
	flags := flag.NewFlagSet("manager", flag.ContinueOnError)
	health := flags.String("health-address", ":8081", "`address` of /healthz and /readyz")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := run(*health); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		return 1
	}
	return 0
}

// run serves until a signal.
func run(health string) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 newScheme(),
		HealthProbeBindAddress: health,
		Metrics:                metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("adding the health check: %w", err)
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
