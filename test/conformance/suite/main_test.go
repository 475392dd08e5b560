// Package suite runs the conformance suite of the Gateway API Inference Extension, and cases of its own, with Kvasir's
// picker behind Istio: a real API server, Istio's control plane, and Envoy as the data plane. The containers of pods are
// processes in a network namespace of the test's own.
package suite

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// inside marks the process that has the namespace.
const inside = "KVASIR_CONFORMANCE_INSIDE"

// roles are the programs that the test's own one can be, by its first argument.
var roles = map[string]func(args []string) error{"echo": echo, "filter": filter, "gateway": gateway}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	if os.Getenv(inside) == "" {
		again := exec.Command(os.Args[0], os.Args[1:]...)
		again.Env = append(os.Environ(), inside+"=true")
		again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
		again.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID, // all processes end with the first
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			Pdeathsig:   syscall.SIGKILL,
		}
		err := again.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return exit.ExitCode(), nil
		}
		if err != nil {
			return 0, fmt.Errorf("starting the tests in a network namespace: %w", err)
		}
		return 0, nil
	}
	// All of the network is local, so that every pod and load balancer has an address that is not one of loopback, which
	// Kubernetes refuses. The API server takes its own address from the default route.
	for _, c := range [][]string{
		{"link", "set", "lo", "up"}, {"addr", "add", "10.9.0.1/16", "dev", "lo"}, {"route", "add", "default", "dev", "lo"},
	} {
		if out, err := exec.Command("ip", c...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("ip %v: %w: %s", c, err, out)
		}
	}
	return m.Run(), nil
}
