package podtemplate

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// Sidecar is the reporter in front of the engine in pods that decode, as the annotation and Skipped name it.
const Sidecar = "sidecar"

// FlagPort is the engine's flag for the port of its API.
const FlagPort = "--port"

// firstBehind is the port of engines behind the sidecar, or the next one that nothing else has.
const firstBehind = 8200

// BehindSidecar puts the engines of the roles that decode behind the sidecar: the reporter serves the pool's port there, and the engine
// listens at another one. It returns why it cannot be, and then changes nothing. A container of the user's that serves the port stays
// as it is.
func (s *Shape) BehindSidecar(pool *v1alpha1.InferencePool) (why string) {
	e, template := &pool.Spec.Engine, &s.Template.Spec
	servesPort := func(c corev1.Container) bool { return len(config.ServeArgs(c.Args)) > 0 }
	switch {
	case slices.ContainsFunc(slices.Concat(template.InitContainers, template.Containers), servesPort):
		return ""
	case ownReporter(template) != nil:
		return "the template has a reporter of its own, without --serve-address"
	case len(s.Roles) == 0:
		return "spec.roles is not set, and the operator puts it into pods with roles only"
	case !s.Wiring.reports():
		return "there is no reporter to serve the port: engine.events.source is " + s.Wiring.Source
	case s.Wiring.Flags != string(v1alpha1.FlagsInject):
		return "engine.flags is " + s.Wiring.Flags + ", so the engine cannot be given another port"
	case s.Wiring.TLS != nil:
		return "engine.tls is set, and the reporter does not have the certificate of the engine"
	case e.Protocol == v1alpha1.ProtocolH2C:
		return "engine.protocol is H2C, which the reporter does not serve"
	case s.Wiring.Ranks > 1:
		return "engine.dataParallel has several ranks, and requests for a rank are not handed over"
	case s.Wiring.HTTP < 1024:
		return fmt.Sprintf("engine.ports.http is %d, and the reporter has no right to ports below 1024", s.Wiring.HTTP)
	}
	port := s.freePort()
	for i := range s.Roles {
		if RoleOf(s.Roles[i].Name) == endpoint.Prefill {
			continue
		}
		if why := s.fixed(&s.Roles[i]); why != "" {
			return why
		}
	}
	s.Wiring.Behind = port
	return ""
}

// fixed is why the engine of a role cannot be given another port; empty if it can.
func (s *Shape) fixed(role *ShapeRole) string {
	const socket = "--uds"
	found := s.Wiring.engine(&s.Template.Spec)
	if found == nil {
		return "" // the template is refused
	}
	if leavesOut(s.Template.Annotations, Sidecar) {
		return "the annotation " + v1alpha1.AnnotationLeaveOut + " leaves it out"
	}
	if why := closed(found); why != "" {
		return "the engine cannot be given another port: " + why
	}
	c := corev1.Container{Command: found.Command, Args: slices.Concat(found.Args, role.ExtraArgs)}
	if mentions(&c, socket) {
		return socket + " is set, so the engine has no port"
	}
	if !mentions(&c, FlagPort) {
		return ""
	}
	if port := valueOf(words(&c, environmentOf(found)), FlagPort); port != strconv.Itoa(int(s.Wiring.HTTP)) {
		return fmt.Sprintf("the engine has %s %s, and engine.ports.http is %d, so something else serves the pool's port",
			FlagPort, port, s.Wiring.HTTP)
	}
	return ""
}

// freePort is the first port from firstBehind on that no container of the pod is known to have.
func (s *Shape) freePort() int32 {
	const status = 9446 // of the reporter
	w := &s.Wiring
	used := map[int32]bool{w.HTTP: true, w.Drain: true, status: true}
	for r := range max(w.Ranks, 1) {
		used[w.Events+r], used[w.Replay+r] = true, true
	}
	for _, containers := range [][]corev1.Container{s.Template.Spec.InitContainers, s.Template.Spec.Containers} {
		for i := range containers {
			for _, p := range containers[i].Ports {
				used[p.ContainerPort] = true
			}
		}
	}
	port := int32(firstBehind)
	for used[port] {
		port++
	}
	return port
}

// ownReporter is the reporter that a template has; nil for none.
func ownReporter(spec *corev1.PodSpec) *corev1.Container {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			if containers[i].Name == v1alpha1.ReporterContainer {
				return &containers[i]
			}
		}
	}
	return nil
}

// behindSidecar gives an engine behind the sidecar its port. The last one of a command line counts.
func (w *work) behindSidecar() {
	if !w.behind {
		return
	}
	w.engine.Args = append(w.engine.Args, FlagPort, strconv.Itoa(int(w.wiring.Behind)))
	w.done = append(w.done, Sidecar, FlagPort)
}

// enginePort is the port at which the engine listens: the pool's, or the one behind the sidecar.
func (w *work) enginePort() int32 {
	if w.behind {
		return w.wiring.Behind
	}
	return w.wiring.HTTP
}

// probedPort is where the kubelet asks whether the engine lives: the engine itself, so that no fault of the sidecar restarts it. An engine
// that listens within the pod only is asked through the sidecar.
func (w *work) probedPort() int32 {
	host := valueOf(words(w.engine, w.environment()), FlagHost)
	if address, err := netip.ParseAddr(host); host == "localhost" || err == nil && address.IsLoopback() {
		return w.wiring.HTTP
	}
	return w.enginePort()
}

// Memory of a sidecar in MiB: by default of the request bodies that it holds, and of its container. The process needs twice the first.
const (
	serveMemory      = 64
	sidecarRequested = 192
	sidecarLimit     = 384
)

// serveArgs are what the reporter needs to serve the pool's port.
func (w *work) serveArgs() []string {
	if !w.behind {
		return nil
	}
	args := []string{
		fmt.Sprintf("--serve-address=:%d", w.wiring.HTTP),
		fmt.Sprintf("--serve-engine=http://127.0.0.1:%d", w.wiring.Behind),
	}
	if r := w.options.ReporterResources; r != nil && !r.Limits.Memory().IsZero() {
		if held := heldMemory(r.Limits.Memory().Value()); held != serveMemory {
			args = append(args, fmt.Sprintf("--serve-memory=%d", held))
		}
	}
	return args
}

// heldMemory is how much memory of bodies a sidecar can hold in a container with a memory limit in bytes, in MiB: a quarter of what the
// limit has beyond that of a reporter that serves no port.
func heldMemory(limit int64) int64 {
	const without = sidecarLimit - 4*serveMemory
	return min(max((limit>>20-without)/4, 1), serveMemory)
}

// ownMemory is what a container's memory limit in bytes leaves for the reporter when it also serves the pool's port.
func ownMemory(limit int64) int64 { return max(limit-heldMemory(limit)*4<<20, limit/4) }

// sidecarResources are those of a reporter that serves the pool's port.
func sidecarResources() corev1.ResourceRequirements {
	mib := func(n int64) resource.Quantity { return *resource.NewQuantity(n<<20, resource.BinarySI) }
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: mib(sidecarRequested)},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: mib(sidecarLimit)},
	}
}

// leavesOut reports whether the author of a template does not want something in the engine's container.
func leavesOut(annotations map[string]string, what string) bool {
	return slices.Contains(strings.FieldsFunc(annotations[v1alpha1.AnnotationLeaveOut], isSeparator), what)
}
