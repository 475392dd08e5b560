package resources

import (
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
)

// Where things are mounted in a picker's container.
const (
	tlsDir        = "/etc/kvasir/tls"
	caDir         = "/etc/kvasir/ca"
	gatewayTLSDir = "/etc/kvasir/gateway-tls"
	modelDir      = "/var/lib/kvasir/model"
	decisionsDir  = "/var/lib/kvasir/decisions"
	usageDir      = "/var/lib/kvasir/usage"
	hubDir        = "/var/lib/kvasir/hub"
	tracingCADir  = "/etc/kvasir/tracing-ca"
	usageCADir    = "/etc/kvasir/usage-ca"
	proxyTLSDir   = "/etc/kvasir/proxy-tls"
	clientCADir   = "/etc/kvasir/client-ca"
	tokenDir      = "/var/run/secrets/kubernetes.io/serviceaccount"
)

const (
	// lameDuckSeconds is how long a terminating picker still takes requests: longer than a Service or gateway takes to
	// notice that it is not ready.
	lameDuckSeconds = 5
	// minReadySeconds is how long a new picker is ready before one of those before goes: an image that crashes soon costs no replica.
	minReadySeconds = 10
	// restMemory is what a picker needs besides its index.
	restMemory = 512 << 20
	// decisionFiles is how many files the decision log has, and decisionSize what they take where the pool sets nothing, in bytes.
	decisionFiles, decisionSize = 4, 256 << 20
	// usageFiles is how many files records of use are in.
	usageFiles = 4
	// hubSize is the limit of the volume for files of the model hub, in bytes: more than the picker's cache can take.
	hubSize = 1280 << 20
	// messageRest is what a gateway's message has besides the largest body, in bytes.
	messageRest = 1 << 20
)

func (p *pickers) deployment() *appsv1.Deployment {
	return &appsv1.Deployment{
		TypeMeta:   typeMeta(appsv1.SchemeGroupVersion.WithKind("Deployment")),
		ObjectMeta: p.meta(p.names.Pickers),
		Spec: appsv1.DeploymentSpec{
			Replicas:        ptr.To(p.settings.Replicas),
			MinReadySeconds: minReadySeconds,
			Selector:        &metav1.LabelSelector{MatchLabels: p.pods},
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1)),
				},
			},
			Template: p.pickerPod(),
		},
	}
}

func (p *pickers) pickerPod() corev1.PodTemplateSpec {
	shape := p.settings.Pod
	if shape == nil {
		shape = &v1alpha1.PickerPod{}
	}
	labels := map[string]string{}
	for k, v := range shape.Labels {
		labels[k] = string(v)
	}
	maps.Copy(labels, p.labels())
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			ServiceAccountName:           p.names.Pickers,
			AutomountServiceAccountToken: ptr.To(true),
			// Open streams are kept as long as a pod's drain can take.
			TerminationGracePeriodSeconds: ptr.To(int64(lameDuckSeconds + p.drainSeconds + 10)),
			// No user or group: the image names a user that is not root, and clusters that give each namespace a range of users
			// (OpenShift) refuse any other.
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Tolerations:       shape.Tolerations,
			Affinity:          p.apart(shape.Affinity),
			PriorityClassName: shape.PriorityClassName,
			Containers:        []corev1.Container{p.pickerContainer()},
			Volumes:           p.volumes(),
		},
	}
	for k, v := range shape.Annotations {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, string(v))
	}
	for _, k := range slices.Sorted(maps.Keys(shape.NodeSelector)) {
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[k] = string(shape.NodeSelector[k])
	}
	for _, s := range shape.ImagePullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s.Name})
	}
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: p.pods},
		// Pods that a rollout is about to remove do not count: the new ones could otherwise all have one node in the end.
		MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
	}}
	return pod
}

// apart adds to an affinity that pickers prefer different zones, if it has no anti-affinity of its own. It is no second constraint of the
// spread, because a scheduler scores by none of several constraints on nodes that lack the label of one: clusters without zones are common.
func (p *pickers) apart(affinity *corev1.Affinity) *corev1.Affinity {
	if affinity = affinity.DeepCopy(); affinity == nil {
		affinity = &corev1.Affinity{}
	}
	if affinity.PodAntiAffinity == nil {
		affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
				TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: p.pods},
			}}},
		}
	}
	return affinity
}

func (p *pickers) pickerContainer() corev1.Container {
	c := corev1.Container{
		Name:  "picker",
		Image: p.PickerImage,
		Args:  p.args(),
		Env: []corev1.EnvVar{{
			Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}},
		}},
		Ports: []corev1.ContainerPort{
			{Name: "ext-proc", ContainerPort: ExtProcPort, Protocol: corev1.ProtocolTCP},
			{Name: "health", ContainerPort: HealthPort, Protocol: corev1.ProtocolTCP},
			{Name: "sync", ContainerPort: SyncPort, Protocol: corev1.ProtocolTCP},
			{Name: "metrics", ContainerPort: MetricsPort, Protocol: corev1.ProtocolTCP},
		},
		ReadinessProbe: probe("/readyz", 2, 1, 1),
		LivenessProbe:  probe("/healthz", 10, 6, 5),
		Resources:      p.resources(),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	if p.proxies() {
		c.Ports = append([]corev1.ContainerPort{{Name: p.proxyPort().name, ContainerPort: ProxyPort, Protocol: corev1.ProtocolTCP}}, c.Ports...)
	}
	for _, port := range p.listen {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: port.Name, ContainerPort: port.Port, Protocol: corev1.ProtocolTCP})
	}
	c.Env = append(c.Env, p.collectorEnv()...)
	if limit := c.Resources.Limits.Memory(); !limit.IsZero() {
		// The collector works harder before the kernel ends the process.
		c.Env = append(c.Env, corev1.EnvVar{Name: "GOMEMLIMIT", Value: strconv.FormatInt(limit.Value()/10*9, 10)})
	}
	for _, v := range p.volumes() {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: mounts[v.Name], ReadOnly: v.EmptyDir == nil})
	}
	return c
}

var mounts = map[string]string{"tls": tlsDir, "ca": caDir, "gateway-tls": gatewayTLSDir, "model": modelDir, "decisions": decisionsDir,
	"usage": usageDir, "hub": hubDir, "tracing-ca": tracingCADir, "usage-ca": usageCADir,
	"proxy-tls": proxyTLSDir, "client-ca": clientCADir}

// volumes of a picker. Roots and keys of engines are not mounted: the picker reads their Secrets, so that a change is
// applied within seconds.
func (p *pickers) volumes() []corev1.Volume {
	volumes := []corev1.Volume{
		{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: p.names.TLS}}},
		{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: p.names.CA},
		}}},
		// It is there even if no decision is logged: the policy can ask for them at any time. Beyond its files, a record
		// must fit.
		{Name: "decisions", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			SizeLimit: resource.NewQuantity(p.decisionSize()+p.decisionSize()/decisionFiles, resource.BinarySI),
		}}},
	}
	if size := p.settings.UsageRecords.File.Size.Value(); size > 0 {
		volumes = append(volumes, corev1.Volume{Name: "usage", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			SizeLimit: resource.NewQuantity(size+size/usageFiles, resource.BinarySI),
		}}})
	}
	if p.downloads {
		volumes = append(volumes, corev1.Volume{Name: "hub", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			SizeLimit: resource.NewQuantity(hubSize, resource.BinarySI),
		}}})
	}
	volumes = append(volumes, collectorVolume("tracing-ca", &p.settings.Tracing.Collector)...)
	volumes = append(volumes, collectorVolume("usage-ca", &p.settings.UsageRecords.OTLP)...)
	if secret := p.gatewayTLS(); secret != "" {
		volumes = append(volumes, corev1.Volume{Name: "gateway-tls", VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: secret},
		}})
	}
	volumes = append(volumes, p.proxyTLSVolumes()...)
	if p.model != nil {
		volumes = append(volumes, corev1.Volume{Name: "model", VolumeSource: *p.model})
	}
	return volumes
}

// gatewayTLS is the Secret with the certificate that gateways are shown, where it is not the pool's own.
func (p *pickers) gatewayTLS() string {
	switch t := p.settings.TLS; t.Type {
	case v1alpha1.TLSSecret:
		return t.SecretRef.Name
	case v1alpha1.TLSCertManager:
		return p.names.GatewayTLS
	case v1alpha1.TLSSelfSigned, v1alpha1.TLSPlaintext:
	}
	return ""
}

func (p *pickers) args() []string {
	const api = "https://kubernetes.default.svc/openid/v1/jwks"
	level := p.LogLevel
	if level == "" {
		level = "info"
	}
	args := append(slices.Clone(p.follow),
		operatorFlag+p.Operator.String(),
		"--ext-proc-address="+address(ExtProcPort),
		"--health-address="+address(HealthPort),
		"--metrics-address="+address(MetricsPort),
		"--report-address="+address(SyncPort),
		"--report-cert="+tlsDir+"/tls.crt",
		"--report-key="+tlsDir+"/tls.key",
		"--report-keys="+api,
		"--report-keys-token="+tokenDir+"/token",
		"--report-keys-ca="+tokenDir+"/ca.crt",
		"--peers-service="+Host(p.names.Peers, p.namespace)+address(SyncPort),
		"--peers-name="+Host(p.names.Pickers, p.namespace),
		"--peers-ca="+caDir+"/ca.crt",
		"--lame-duck="+strconv.Itoa(lameDuckSeconds)+"s",
		"--drain-timeout="+strconv.Itoa(p.drainSeconds)+"s",
		"--log-level="+level,
		"--log-format=json",
	)
	if p.proxies() {
		args = append(args, "--proxy-address="+address(ProxyPort))
	} else {
		args = append(args, "--proxy-address=")
	}
	args = append(args, p.proxyTLSArgs()...)
	switch p.settings.TLS.Type {
	case v1alpha1.TLSPlaintext:
		args = append(args, "--ext-proc-plaintext")
	case v1alpha1.TLSSelfSigned:
		args = append(args, "--ext-proc-cert="+tlsDir+"/tls.crt", "--ext-proc-key="+tlsDir+"/tls.key")
	case v1alpha1.TLSSecret, v1alpha1.TLSCertManager:
		args = append(args, "--ext-proc-cert="+gatewayTLSDir+"/tls.crt", "--ext-proc-key="+gatewayTLSDir+"/tls.key")
	}
	if p.model != nil {
		args = append(args, "--model-root="+modelDir)
	}
	return append(args, p.chosenArgs()...)
}

// chosenArgs are the flags for what the pool's picker section chooses.
func (p *pickers) chosenArgs() []string {
	s := p.settings
	args := []string{
		"--ext-proc-max-message=" + strconv.FormatInt(s.MaxRequestBody.Value()+messageRest, 10),
		"--decision-log=" + decisionsDir,
		"--decision-log-bytes=" + strconv.FormatInt(p.decisionSize()/decisionFiles, 10),
		"--decision-log-files=" + strconv.Itoa(decisionFiles),
	}
	if size := s.UsageRecords.File.Size.Value(); size > 0 {
		args = append(args, "--usage-log="+usageDir, "--usage-log-bytes="+strconv.FormatInt(size/usageFiles, 10),
			"--usage-log-files="+strconv.Itoa(usageFiles))
	}
	if to := &s.UsageRecords.OTLP; to.Endpoint != "" {
		args = append(args, "--usage-endpoint="+to.Endpoint)
	}
	if s.Island != "" {
		args = append(args, "--island="+s.Island)
	}
	if t := &s.Tracing; t.Endpoint != "" {
		args = append(args, "--tracing-endpoint="+t.Endpoint,
			"--tracing-ratio="+strconv.FormatFloat(float64(ptr.Deref(t.SamplePercent, v1alpha1.DefaultSamplePercent))/100, 'f', 2, 64))
	}
	if s.CompatibilityMetrics == v1alpha1.Enabled {
		args = append(args, "--compat-metrics")
	}
	if s.Profiling == v1alpha1.Enabled {
		args = append(args, "--pprof")
	}
	if p.downloads {
		args = append(args, "--hub-endpoint="+p.HubEndpoint, "--hub-cache="+hubDir)
		if p.HubAuthorities != "" {
			args = append(args, "--hub-ca="+p.HubAuthorities)
		}
		if p.HubProxy != "" {
			args = append(args, "--hub-proxy="+p.HubProxy)
		}
	}
	if len(p.listen) > 0 {
		args = append(args, "--events-address="+address(int(p.listen[0].Port)))
	}
	return args
}

// decisionSize is what the files of a decision log take together, in bytes.
func (p *pickers) decisionSize() int64 {
	if size := p.settings.DecisionLog.Size; !size.IsZero() {
		return size.Value()
	}
	return decisionSize
}

// collectorEnv are the variables that OpenTelemetry defines for what is no flag of the picker. Those of traces and of records of use
// are apart, so that the collector of one does not get the headers of the other.
func (p *pickers) collectorEnv() []corev1.EnvVar {
	tracing, usage := &p.settings.Tracing.Collector, &p.settings.UsageRecords.OTLP
	if tracing.Endpoint == "" && usage.Endpoint == "" {
		return nil
	}
	env := []corev1.EnvVar{{Name: "OTEL_RESOURCE_ATTRIBUTES", Value: "k8s.namespace.name=" + p.namespace + ",k8s.pod.name=$(POD_NAME)"}}
	env = append(env, signalEnv("TRACES", tracingCADir, tracing)...)
	return append(env, signalEnv("LOGS", usageCADir, usage)...)
}

// signalEnv are the variables for a signal of OpenTelemetry, with the directory of the certificates that a collector's is verified by.
func signalEnv(signal, caDir string, to *v1alpha1.Collector) (env []corev1.EnvVar) {
	if to.Endpoint == "" {
		return nil
	}
	prefix := "OTEL_EXPORTER_OTLP_" + signal
	if to.Protocol == v1alpha1.CollectorHTTP {
		env = append(env, corev1.EnvVar{Name: prefix + "_PROTOCOL", Value: "http/protobuf"})
	}
	if to.CASecretRef.Name != "" {
		env = append(env, corev1.EnvVar{Name: prefix + "_CERTIFICATE", Value: caDir + "/ca.crt"})
	}
	if ref := to.HeadersSecretRef; ref.Name != "" {
		// Pickers start without the Secret, too: they serve requests, whatever becomes of their traces and records.
		env = append(env, corev1.EnvVar{Name: prefix + "_HEADERS", ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name}, Key: ref.Key, Optional: ptr.To(true),
			},
		}})
	}
	return env
}

// collectorVolume has the certificates that a collector's is verified by, if the pool names them.
func collectorVolume(name string, to *v1alpha1.Collector) []corev1.Volume {
	ref := to.CASecretRef
	if ref.Name == "" {
		return nil
	}
	return []corev1.Volume{{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: ref.Name, Optional: ptr.To(true), Items: []corev1.KeyToPath{{Key: ref.Key, Path: "ca.crt"}},
	}}}}
}

func (p *pickers) proxies() bool { return p.settings.Proxy != v1alpha1.Disabled }

// resources are the requested resources: those of the pool, else the index and the rest of the process.
func (p *pickers) resources() corev1.ResourceRequirements {
	if r := p.settings.Resources; r != nil {
		return *r
	}
	memory := p.settings.IndexMemory.DeepCopy()
	memory.Add(*resource.NewQuantity(restMemory, resource.BinarySI))
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: memory,
	}}
}

// probe asks a path each period, in seconds, and waits for the answer for timeout seconds. A restart costs the index and all
// streams, so the kubelet must not take a picker on a starved node for a dead one.
func probe(path string, period, failures, timeout int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("health")}},
		PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: timeout,
	}
}

func address(port int) string { return ":" + strconv.Itoa(port) }

// Host is the DNS name of a Service within the cluster, whatever the cluster's domain.
func Host(service, namespace string) string { return service + "." + namespace + ".svc" }
