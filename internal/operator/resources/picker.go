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
	tokenDir      = "/var/run/secrets/kubernetes.io/serviceaccount"
)

const (
	// lameDuckSeconds is how long a terminating picker still takes requests: longer than a Service or gateway takes to
	// notice that it is not ready.
	lameDuckSeconds = 5
	// restMemory is what a picker needs besides its index.
	restMemory = 512 << 20
)

func (b *builder) deployment() *appsv1.Deployment {
	p := &b.pool.Spec.Picker
	return &appsv1.Deployment{
		TypeMeta:   typeMeta(appsv1.SchemeGroupVersion.WithKind("Deployment")),
		ObjectMeta: b.meta(PickerName(b.pool.Name)),
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(p.Replicas),
			Selector: &metav1.LabelSelector{MatchLabels: b.selector()},
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1)),
				},
			},
			Template: b.pickerPod(),
		},
	}
}

func (b *builder) pickerPod() corev1.PodTemplateSpec {
	shape := b.pool.Spec.Picker.Pod
	if shape == nil {
		shape = &v1alpha1.PickerPod{}
	}
	labels := map[string]string{}
	for k, v := range shape.Labels {
		labels[k] = string(v)
	}
	maps.Copy(labels, b.labels())
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			ServiceAccountName:           PickerName(b.pool.Name),
			AutomountServiceAccountToken: ptr.To(true),
			// Open streams are kept as long as a pod's drain can take.
			TerminationGracePeriodSeconds: ptr.To(int64(lameDuckSeconds + b.drainSeconds() + 10)),
			// No user or group: the image names a user that is not root, and clusters that give each namespace a range of users
			// (OpenShift) refuse any other.
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Tolerations:       shape.Tolerations,
			Affinity:          shape.Affinity,
			PriorityClassName: shape.PriorityClassName,
			Containers:        []corev1.Container{b.pickerContainer()},
			Volumes:           b.volumes(),
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
	for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: b.selector()},
		})
	}
	return pod
}

func (b *builder) pickerContainer() corev1.Container {
	c := corev1.Container{
		Name:  "picker",
		Image: b.PickerImage,
		Args:  b.args(),
		Env: []corev1.EnvVar{{
			Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}},
		}},
		Ports: []corev1.ContainerPort{
			{Name: "ext-proc", ContainerPort: ExtProcPort, Protocol: corev1.ProtocolTCP},
			{Name: "health", ContainerPort: HealthPort, Protocol: corev1.ProtocolTCP},
			{Name: "sync", ContainerPort: SyncPort, Protocol: corev1.ProtocolTCP},
			{Name: "metrics", ContainerPort: MetricsPort, Protocol: corev1.ProtocolTCP},
		},
		ReadinessProbe: probe("/readyz", 2, 1),
		LivenessProbe:  probe("/healthz", 10, 3),
		Resources:      b.resources(),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	if b.proxies() {
		c.Ports = append([]corev1.ContainerPort{{Name: "http", ContainerPort: ProxyPort, Protocol: corev1.ProtocolTCP}}, c.Ports...)
	}
	if limit := c.Resources.Limits.Memory(); !limit.IsZero() {
		// The collector works harder before the kernel ends the process.
		c.Env = append(c.Env, corev1.EnvVar{Name: "GOMEMLIMIT", Value: strconv.FormatInt(limit.Value()/10*9, 10)})
	}
	for _, v := range b.volumes() {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: mounts[v.Name], ReadOnly: true})
	}
	return c
}

var mounts = map[string]string{"tls": tlsDir, "ca": caDir, "gateway-tls": gatewayTLSDir, "model": modelDir}

// volumes of a picker. Roots and keys of engines are not mounted: the picker reads their Secrets, so that a change is
// applied within seconds.
func (b *builder) volumes() []corev1.Volume {
	volumes := []corev1.Volume{
		{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: TLSName(b.pool.Name)}}},
		{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: CAName(b.pool.Name)},
		}}},
	}
	if secret := b.gatewayTLS(); secret != "" {
		volumes = append(volumes, corev1.Volume{Name: "gateway-tls", VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: secret},
		}})
	}
	if v := b.pool.Spec.Model.Tokenizer.Volume; v != nil {
		switch {
		case v.PersistentVolumeClaim.Name != "":
			volumes = append(volumes, corev1.Volume{Name: "model", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.PersistentVolumeClaim.Name, ReadOnly: true},
			}})
		case v.Image != nil:
			volumes = append(volumes, corev1.Volume{Name: "model", VolumeSource: corev1.VolumeSource{Image: v.Image}})
		}
	}
	return volumes
}

// gatewayTLS is the Secret with the certificate that gateways are shown, where it is not the pool's own.
func (b *builder) gatewayTLS() string {
	switch t := b.pool.Spec.Picker.TLS; t.Type {
	case v1alpha1.TLSSecret:
		return t.SecretRef.Name
	case v1alpha1.TLSCertManager:
		return GatewayTLSName(b.pool.Name)
	case v1alpha1.TLSSelfSigned, v1alpha1.TLSPlaintext:
	}
	return ""
}

func (b *builder) args() []string {
	const api = "https://kubernetes.default.svc/openid/v1/jwks"
	name, namespace := b.pool.Name, b.pool.Namespace
	level := b.LogLevel
	if level == "" {
		level = "info"
	}
	args := []string{
		"--pool=" + namespace + "/" + name,
		"--operator=" + b.Operator.String(),
		"--ext-proc-address=" + address(ExtProcPort),
		"--health-address=" + address(HealthPort),
		"--metrics-address=" + address(MetricsPort),
		"--report-address=" + address(SyncPort),
		"--report-cert=" + tlsDir + "/tls.crt",
		"--report-key=" + tlsDir + "/tls.key",
		"--report-keys=" + api,
		"--report-keys-token=" + tokenDir + "/token",
		"--report-keys-ca=" + tokenDir + "/ca.crt",
		"--peers-service=" + Host(PeersName(name), namespace) + address(SyncPort),
		"--peers-name=" + Host(PickerName(name), namespace),
		"--peers-ca=" + caDir + "/ca.crt",
		"--lame-duck=" + strconv.Itoa(lameDuckSeconds) + "s",
		"--drain-timeout=" + strconv.Itoa(b.drainSeconds()) + "s",
		"--log-level=" + level,
		"--log-format=json",
	}
	if b.proxies() {
		args = append(args, "--proxy-address="+address(ProxyPort))
	} else {
		args = append(args, "--proxy-address=")
	}
	switch b.pool.Spec.Picker.TLS.Type {
	case v1alpha1.TLSPlaintext:
		args = append(args, "--ext-proc-plaintext")
	case v1alpha1.TLSSelfSigned:
		args = append(args, "--ext-proc-cert="+tlsDir+"/tls.crt", "--ext-proc-key="+tlsDir+"/tls.key")
	case v1alpha1.TLSSecret, v1alpha1.TLSCertManager:
		args = append(args, "--ext-proc-cert="+gatewayTLSDir+"/tls.crt", "--ext-proc-key="+gatewayTLSDir+"/tls.key")
	}
	for _, v := range b.volumes() {
		if v.Name == "model" {
			args = append(args, "--model-root="+modelDir)
		}
	}
	return args
}

func (b *builder) proxies() bool { return b.pool.Spec.Picker.Proxy != v1alpha1.Disabled }

func (b *builder) drainSeconds() int { return int(ptr.Deref(b.pool.Spec.Drain.DeadlineSeconds, 600)) }

// resources are the requested resources: those of the pool, else the index and the rest of the process.
func (b *builder) resources() corev1.ResourceRequirements {
	if r := b.pool.Spec.Picker.Resources; r != nil {
		return *r
	}
	memory := b.pool.Spec.Picker.IndexMemory.DeepCopy()
	memory.Add(*resource.NewQuantity(restMemory, resource.BinarySI))
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: memory,
	}}
}

func probe(path string, period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("health")}},
		PeriodSeconds: period, FailureThreshold: failures,
	}
}

func address(port int) string { return ":" + strconv.Itoa(port) }

// Host is the DNS name of a Service within the cluster, whatever the cluster's domain.
func Host(service, namespace string) string { return service + "." + namespace + ".svc" }
