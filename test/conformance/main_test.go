// Package conformance runs Istio's control plane over what a cluster holds when somebody follows the docs, and Envoy with
// the configuration that it makes.
package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"istio.io/istio/pilot/pkg/features"
)

// gatewayPod is the address of the gateway's pod. Addresses are those of the loopback device of a network namespace of the
// test's own.
const gatewayPod = "10.9.0.1"

// pool is a pool of the page, with the addresses of its pods.
type pool struct {
	name, picker string
	engines      []string
	// replicas are the addresses of all its pickers.
	replicas []string
}

// service is the Service of the pool's pickers; a fleet's is called as what gateways see of it.
func (p pool) service() string {
	if strings.HasSuffix(p.name, "-fleet") {
		return p.name
	}
	return p.name + "-picker"
}

// labels are those of the engines' pods.
func (p pool) labels() string {
	if fleet, ok := strings.CutSuffix(p.name, "-fleet"); ok {
		return "fleet.kvasir.dev/" + fleet + ": engine"
	}
	return "app: vllm"
}

// secondPicker is the address of a second picker of chat, where a test has one.
const secondPicker = "10.9.2.3"

var (
	chat    = pool{"chat", "10.9.2.1", []string{"10.9.1.1", "10.9.1.2"}, []string{"10.9.2.1"}}
	chatNew = pool{"chat-new", "10.9.2.2", []string{"10.9.1.3"}, []string{"10.9.2.2"}}
)

// inside marks the process that has the namespace.
const inside = "KVASIR_CONFORMANCE_INSIDE"

func TestMain(m *testing.M) {
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
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
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
	commands := [][]string{{"link", "set", "lo", "up"}}
	for _, pod := range slices.Concat([]string{gatewayPod, chat.picker, chatNew.picker, secondPicker}, chat.engines, chatNew.engines) {
		commands = append(commands, []string{"addr", "add", pod + "/32", "dev", "lo"})
	}
	for _, c := range commands {
		if out, err := exec.Command("ip", c...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("ip %v: %w: %s", c, err, out)
		}
	}
	// Envoy of its own project lacks the filters that these add.
	features.ALPNFilter, features.MetadataExchange = false, false
	features.EnableGatewayAPIInferenceExtension = true
	return m.Run(), nil
}
