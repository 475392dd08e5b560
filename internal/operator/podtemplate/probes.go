package podtemplate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// The probes, as the annotation and Skipped name them.
const (
	StartupProbe   = "startupProbe"
	ReadinessProbe = "readinessProbe"
	LivenessProbe  = "livenessProbe"
)

// Periods of the probes, in seconds, and how many failures in a row have an effect. A model can take an hour to load and
// to compile, and a busy API server can answer late: a restart costs all of that again, and all requests. So an engine has
// two hours to start, and is restarted only after two minutes without one answer.
const (
	probeTimeout                    = 10
	startupPeriod, startupFailures  = 5, 1440
	readyPeriod, readyFailures      = 5, 3
	livenessPeriod, livenessFailing = 10, 12
)

// probes has the kubelet ask the engine whether it is up: without probes a container is ready as soon as its process runs,
// and a rollout would replace every pod while the new engines load. Probes that the template has stay as they are.
func (w *work) probes() {
	if why := w.noProbes(); why != "" {
		// A startup probe holds readiness back as well.
		if w.engine.ReadinessProbe == nil && w.engine.StartupProbe == nil && !w.leftOut(ReadinessProbe) {
			w.skip(w.engine.Name, ReadinessProbe, why)
		}
		return
	}
	lives := w.probedPort()
	for _, p := range []struct {
		name                   string
		probe                  **corev1.Probe
		port, period, failures int32
	}{
		{StartupProbe, &w.engine.StartupProbe, lives, startupPeriod, startupFailures},
		{ReadinessProbe, &w.engine.ReadinessProbe, w.wiring.HTTP, readyPeriod, readyFailures}, // where requests arrive
		{LivenessProbe, &w.engine.LivenessProbe, lives, livenessPeriod, livenessFailing},
	} {
		if *p.probe == nil && !w.leftOut(p.name) {
			*p.probe = &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{HTTPGet: w.health(p.port)},
				PeriodSeconds: p.period, TimeoutSeconds: probeTimeout, FailureThreshold: p.failures,
			}
			w.done = append(w.done, p.name)
		}
	}
}

// noProbes is why probes are left to the author of the template; empty where the operator adds them.
func (w *work) noProbes() string {
	const needsCertificate, socket = "--ssl-cert-reqs", "--uds"
	switch {
	case w.pod.Annotations[v1alpha1.AnnotationProbes] == string(v1alpha1.FlagsManual):
		return "the template's annotation " + v1alpha1.AnnotationProbes + " is " + string(v1alpha1.FlagsManual)
	case w.wiring.Flags != string(v1alpha1.FlagsInject):
		return "engine.flags is " + w.wiring.Flags
	case w.wiring.Type != string(v1alpha1.EngineVLLM):
		return "probes are added to engines of the type VLLM only"
	case mentions(w.engine, needsCertificate):
		return needsCertificate + " is set, and the kubelet has no client certificate"
	case mentions(w.engine, socket):
		return socket + " is set, and the kubelet needs a port"
	}
	return ""
}

// health is the path where a vLLM answers 200 once its model is loaded, and 503 when its engine has died. It needs no key.
func (w *work) health(port int32) *corev1.HTTPGetAction {
	get := &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(port), Scheme: corev1.URISchemeHTTP}
	if w.wiring.TLS != nil {
		get.Scheme = corev1.URISchemeHTTPS // the kubelet checks no certificate
	}
	return get
}
