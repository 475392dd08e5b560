// Package podtemplate makes the pod of a slot from a pool's template. It is pure. It adds what Kvasir needs where the user has
// set nothing, changes nothing that the user has set, and reports what it could not add: the reporter as a native sidecar
// with its proof, the engine's flags, probes and preStop hook, the grace, labels, and the gate Warm.
//
// What shapes a pod apart from that, the template and the engine's wiring, is a Shape; its hash is the revision. What
// is injected is no part of it, so that an upgrade of Kvasir restarts no engine.
package podtemplate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/operator/resources"
)

// ConditionWarm is the readiness gate of pods that are warmed up.
const ConditionWarm corev1.PodConditionType = "kvasir.dev/Warm"

// Grace is what a pod has beyond the drain deadline to end: the engine gets EngineGrace of it after its SIGTERM.
const (
	Grace       = 30 * time.Second
	EngineGrace = 20 * time.Second
)

// What can be injected, as the annotation and Skipped name it.
const (
	Reporter = "reporter"
	PreStop  = "preStop"
	GraceFor = "terminationGracePeriodSeconds"
	Gate     = "readinessGate"
	Shm      = "shm"
	// IslandArgs is followed by the island's name, RoleArgs by that of the role.
	IslandArgs = "extraArgs of island "
	RoleArgs   = "extraArgs of role "
)

// Options are what shapes a pod beyond its revision.
type Options struct {
	// Namespace and Pool name the pool.
	Namespace, Pool string
	// Name of the pod, its revision, and its slot.
	Name, Revision string
	Slot           int
	// Role is one of the shape's roles; empty for a shape without roles.
	Role v1alpha1.RoleName
	// IslandLabel is the label that names the island; empty takes the default. Island is where the pod goes, nil where
	// the pool names none.
	IslandLabel string
	Island      *v1alpha1.Island
	// Provisioning has the pod wait for a ProvisioningRequest of its name, of the island's class.
	Provisioning bool
	// Deadline of a drain.
	Deadline time.Duration
	// Warm adds the gate.
	Warm bool
	// ReporterImage, and the resources of the sidecar; nil takes the defaults. ReporterLogLevel is its --log-level; empty leaves the
	// default.
	ReporterImage, ReporterLogLevel string
	ReporterResources               *corev1.ResourceRequirements
	// FindModel lets the reporter send the model's files to pickers, if the engine has them on a volume. It is no part of the wiring:
	// an upgrade must not change the revisions of pools without a setting.
	FindModel bool
	// Version of what is injected, for the annotation.
	Version string
	// IPv6 is whether the first address of pods is one of IPv6, to which the kubelet and pickers connect.
	IPv6 bool
}

// For returns the options that a pool gives. Name, Revision, Slot, Island, ReporterImage and Version are the caller's.
func For(pool *v1alpha1.InferencePool) Options {
	o := Options{
		Namespace: pool.Namespace, Pool: pool.Name, Warm: pool.Spec.WarmUp != nil, Deadline: Deadline(pool),
		ReporterResources: pool.Spec.Engine.Events.Reporter.Resources,
		FindModel:         pool.Spec.Model.Tokenizer.Type == v1alpha1.TokenizerAuto,
	}
	if p := pool.Spec.Placement; p != nil {
		o.IslandLabel = p.IslandLabel
	}
	return o
}

// Deadline of a pool's drains.
func Deadline(pool *v1alpha1.InferencePool) time.Duration {
	return time.Duration(ptr.Deref(pool.Spec.Drain.DeadlineSeconds, v1alpha1.DefaultDrainDeadlineSeconds)) * time.Second
}

// Skipped is something that could not be injected.
type Skipped struct {
	// Container that it was for, empty for the pod.
	Container string
	// What: a flag, or one of the names above; Why is the obstacle.
	What, Why string
}

// ErrTemplate says that a template cannot be a pod of the pool.
var ErrTemplate = errors.New("the template has no container of the engine")

// Pod makes a pod. It shares nothing with the shape. The error wraps ErrTemplate.
func Pod(shape *Shape, o *Options) (*corev1.Pod, []Skipped, error) {
	template := shape.Template.DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: o.Name, Namespace: o.Namespace, Labels: template.Labels, Annotations: template.Annotations,
		},
		Spec: template.Spec,
	}
	engine := shape.Wiring.engine(&pod.Spec)
	if engine == nil {
		return nil, nil, fmt.Errorf("container %q: %w", shape.Wiring.Container, ErrTemplate)
	}
	w := &work{pod: pod, engine: engine, wiring: &shape.Wiring, options: o}
	w.island()
	w.role(shape.role(o.Role))
	w.reporter()
	w.behindSidecar()
	w.flags()
	w.keepAlive()
	w.sideChannel()
	w.probes()
	w.sharedMemory()
	w.preStop()
	w.grace()
	w.gate()
	w.identity()
	return pod, w.skipped, nil
}

// work is a pod being made.
type work struct {
	pod     *corev1.Pod
	engine  *corev1.Container // in pod
	wiring  *Wiring
	options *Options

	transfers bool // the engine hands prompts over, or takes them
	behind    bool // the reporter serves the pool's port in front of the engine
	done      []string
	skipped   []Skipped
}

func (w *work) skip(container, what, why string) {
	w.skipped = append(w.skipped, Skipped{container, what, why})
}

// leftOut reports whether the author of the template does not want something in the engine's container.
func (w *work) leftOut(what string) bool {
	return leavesOut(w.pod.Annotations, what)
}

func isSeparator(c rune) bool { return c == ',' || unicode.IsSpace(c) }

// Injected returns what was added to a pod, by the names of flags and variables and by those above.
func Injected(pod *corev1.Pod) []string {
	_, list, _ := strings.Cut(pod.Annotations[v1alpha1.AnnotationInjected], " ")
	return strings.Fields(list)
}

// sharedMemory gives the processes of an engine the memory that they share: vLLM's workers need more than the 64 MiB of
// container runtimes as soon as there are two of them. What they use counts as the pod's memory, which limits it.
func (w *work) sharedMemory() {
	const dir, volume = "/dev/shm", "kvasir-shm"
	if w.wiring.Type != string(v1alpha1.EngineVLLM) || w.wiring.Flags != string(v1alpha1.FlagsInject) || w.pod.Spec.HostIPC ||
		mountOf(w.engine, dir) != nil || w.leftOut(Shm) ||
		slices.ContainsFunc(w.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume }) {
		return
	}
	w.pod.Spec.Volumes = append(w.pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
	}})
	w.engine.VolumeMounts = append(w.engine.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: dir})
	w.done = append(w.done, Shm)
}

// island puts the pod on its island.
func (w *work) island() {
	island := w.options.Island
	if island == nil {
		return
	}
	spec := &w.pod.Spec
	if len(island.NodeSelector) > 0 && spec.NodeSelector == nil {
		spec.NodeSelector = map[string]string{}
	}
	for k, v := range island.NodeSelector {
		spec.NodeSelector[k] = string(v)
	}
	for _, t := range island.Tolerations {
		if !slices.Contains(spec.Tolerations, t) {
			spec.Tolerations = append(spec.Tolerations, *t.DeepCopy())
		}
	}
	if e := island.Engine; e != nil {
		if e.Resources != nil {
			w.engine.Resources = *e.Resources.DeepCopy()
		}
		w.extraArgs(IslandArgs+island.Name, e.ExtraArgs)
	}
}

// extraArgs appends arguments to those of the engine.
func (w *work) extraArgs(what string, args []string) {
	if why := closed(w.engine); why != "" && len(args) > 0 {
		w.skip(w.engine.Name, what, why)
		return
	}
	w.engine.Args = append(w.engine.Args, args...)
}

// role gives the pod its role, nil for none, and what the engine of the role has of its own.
func (w *work) role(role *ShapeRole) {
	if role == nil {
		return
	}
	w.transfers = true
	w.behind = w.wiring.Behind > 0 && RoleOf(role.Name) != endpoint.Prefill
	metav1.SetMetaDataLabel(&w.pod.ObjectMeta, v1alpha1.LabelRole, RoleOf(role.Name).String())
	if role.Resources != nil {
		w.engine.Resources = *role.Resources.DeepCopy()
	}
	w.extraArgs(RoleArgs+string(role.Name), role.ExtraArgs)
}

// preStop makes the end of the engine wait until it is idle.
func (w *work) preStop() {
	switch {
	case w.engine.Lifecycle != nil && w.engine.Lifecycle.PreStop != nil, w.leftOut(PreStop):
		return
	case !w.wiring.reports():
		w.skip(w.engine.Name, PreStop, "there is no reporter to wait: events.source is "+w.wiring.Source)
		return
	}
	if w.engine.Lifecycle == nil {
		w.engine.Lifecycle = &corev1.Lifecycle{}
	}
	w.engine.Lifecycle.PreStop = &corev1.LifecycleHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(w.wiring.Drain)},
	}
	w.done = append(w.done, PreStop)
}

// grace leaves time for the drain when another client deletes the pod.
func (w *work) grace() {
	want := int64((w.options.Deadline + Grace) / time.Second)
	switch set := w.pod.Spec.TerminationGracePeriodSeconds; {
	case set == nil:
		w.pod.Spec.TerminationGracePeriodSeconds = &want
		w.done = append(w.done, GraceFor)
	case *set < want:
		w.skip("", GraceFor, fmt.Sprintf("it is set to %d, less than the drain deadline and %s", *set, Grace))
	}
}

// gate makes Ready wait for the warm-up.
func (w *work) gate() {
	gate := corev1.PodReadinessGate{ConditionType: ConditionWarm}
	if !w.options.Warm || slices.Contains(w.pod.Spec.ReadinessGates, gate) {
		return
	}
	w.pod.Spec.ReadinessGates = append(w.pod.Spec.ReadinessGates, gate)
	w.done = append(w.done, Gate)
}

// identity sets the labels for the pod's pool, revision and slot.
func (w *work) identity() {
	o := w.options
	labels := map[string]string{
		v1alpha1.LabelPool: o.Pool, v1alpha1.LabelRevision: o.Revision, v1alpha1.LabelSlot: strconv.Itoa(o.Slot),
	}
	if o.Island != nil {
		if class := o.Island.ProvisioningClassName; class != "" && o.Provisioning {
			metav1.SetMetaDataAnnotation(&w.pod.ObjectMeta, resources.AnnotationConsumes, o.Name)
			metav1.SetMetaDataAnnotation(&w.pod.ObjectMeta, resources.AnnotationProvisioningClass, class)
		}
		label := o.IslandLabel
		if label == "" {
			label = v1alpha1.LabelIsland
		}
		labels[label] = o.Island.Name
	}
	if w.pod.Labels == nil {
		w.pod.Labels = map[string]string{}
	}
	maps.Copy(w.pod.Labels, labels)
	// A template cannot be born draining.
	delete(w.pod.Labels, v1alpha1.LabelDrain)
	if w.pod.Annotations == nil {
		w.pod.Annotations = map[string]string{}
	}
	w.pod.Annotations[v1alpha1.AnnotationInjected] = strings.Join(append([]string{o.Version}, w.done...), " ")
	delete(w.pod.Annotations, v1alpha1.AnnotationReporterBefore)
	delete(w.pod.Annotations, v1alpha1.AnnotationReporterImage)
	if slices.Contains(w.done, Reporter) {
		w.pod.Annotations[v1alpha1.AnnotationReporterImage] = o.ReporterImage
	}
}

// reporter adds the sidecar.
func (w *work) reporter() {
	const name = v1alpha1.ReporterContainer
	o, wiring, spec := w.options, w.wiring, &w.pod.Spec
	if !wiring.reports() {
		return
	}
	if ownReporter(spec) != nil {
		return // the user brings one
	}
	always := corev1.ContainerRestartPolicyAlways
	yes, no := true, false
	c := corev1.Container{
		Name: name, Image: o.ReporterImage, RestartPolicy: &always, Args: w.reporterArgs(), Resources: w.reporterResources(),
		Env: []corev1.EnvVar{{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"},
		}}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumeState, MountPath: pathState}, {Name: volumeProof, MountPath: pathProof, ReadOnly: true},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: &yes, RunAsUser: reporterUser(spec), ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	spec.Volumes = append(spec.Volumes,
		corev1.Volume{Name: volumeState, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
		}},
		corev1.Volume{Name: volumeProof, VolumeSource: proof(o, wiring)},
	)
	w.modelFiles(&c)
	spec.InitContainers = slices.Insert(spec.InitContainers, 0, c)
	w.done = append(w.done, Reporter)
}

// reporterUser is the user that the sidecar of a pod must name: none, so that the pod's own user holds, or that of the image, or the
// one that the cluster gives (OpenShift refuses ids outside the namespace's range). In a pod that runs as root by its own words
// the sidecar would not start, so there it is the image's user.
func reporterUser(pod *corev1.PodSpec) *int64 {
	const imageUser = 65532
	if s := pod.SecurityContext; s == nil || s.RunAsUser == nil || *s.RunAsUser != 0 {
		return nil
	}
	return ptr.To[int64](imageUser)
}

// Volumes of the sidecar.
const (
	volumeState, pathState = "kvasir-state", "/var/lib/kvasir"
	volumeProof, pathProof = "kvasir-proof", "/var/run/kvasir"
)

func (w *work) reporterArgs() []string {
	o, wiring := w.options, w.wiring
	way, listens, events, replay := "--events-listen", false, fmt.Sprint(wiring.Events), fmt.Sprint(wiring.Replay)
	if mentions(w.engine, FlagEvents) {
		var port, replayPort string
		listens, port, replayPort = publisher(w.engine)
		events, replay = cmp.Or(port, events), cmp.Or(replayPort, replay)
	}
	if listens {
		way = "--events-connect"
	}
	args := []string{
		"--engine=" + wiring.Type,
		fmt.Sprintf("--ranks=%d", wiring.Ranks),
		"--first-rank=" + w.firstRank(),
		way + "=127.0.0.1:" + events,
		"--replay=127.0.0.1:" + replay,
		fmt.Sprintf("--picker-service=%s.%s.svc:%d", resources.PeersName(o.Pool), o.Namespace, resources.SyncPort),
		fmt.Sprintf("--picker-name=%s.%s.svc", resources.PickerName(o.Pool), o.Namespace),
		"--picker-ca=" + pathProof + "/ca.crt",
		"--token-file=" + pathProof + "/token",
		"--state-dir=" + pathState,
		fmt.Sprintf("--drain-address=:%d", wiring.Drain),
		fmt.Sprintf("--drain-deadline=%s", o.Deadline),
		"--engine-metrics=" + wiring.metrics(w.enginePort()),
	}
	args = append(args, w.serveArgs()...)
	if o.ReporterLogLevel != "" {
		args = append(args, "--log-level="+o.ReporterLogLevel)
	}
	if r := o.ReporterResources; r != nil && !r.Limits.Memory().IsZero() {
		limit := r.Limits.Memory().Value()
		if w.behind {
			limit = ownMemory(limit)
		}
		args = append(args, fmt.Sprintf("--memory-limit=%d", softLimit(limit)))
	}
	switch t := wiring.TLS; {
	case t == nil:
	case t.ServerName == "":
		args = append(args, "--engine-unchecked")
	default:
		args = append(args, "--engine-name="+t.ServerName)
		if t.CASecret != "" {
			args = append(args, "--engine-ca="+pathProof+"/"+engineCA)
		}
	}
	return args
}

// softLimit is the reporter's soft memory limit in MiB, for the limit of its container in bytes: the same share as by default, 48 of
// 128 MiB, and in a smaller container as much of these 48 as leaves a quarter. The rest is for what the collector has not freed yet.
func softLimit(limit int64) int64 {
	mib := limit >> 20
	return max(min(max(48, mib*3/8), mib*3/4), 1)
}

// engineCA is the CA of the engine's certificate among the proofs.
const engineCA = "engine-ca.crt"

// metrics are the URLs of the metrics of an engine at a port: one for all ranks, or one each.
func (w *Wiring) metrics(port int32) string {
	scheme, ports := "http", int32(1)
	if w.TLS != nil {
		scheme = "https"
	}
	if w.PerRank {
		ports = w.Ranks
	}
	urls := make([]string, ports)
	for i := range ports {
		urls[i] = fmt.Sprintf("%s://127.0.0.1:%d/metrics", scheme, port+i)
	}
	return strings.Join(urls, ",")
}

// firstRank is what the user says of pods of a bigger group; a number, or 0.
func (w *work) firstRank() string {
	if n, err := strconv.ParseUint(w.pod.Annotations[v1alpha1.AnnotationStartRank], 10, 16); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return "0"
}

// proof is a token for pickers alone, and the CAs of pickers and engine. A pod starts without the Secret of the engine's
// CA, too.
func proof(o *Options, w *Wiring) corev1.VolumeSource {
	hour, yes := int64(3600), true
	sources := []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Audience: "kvasir.dev/report", ExpirationSeconds: &hour, Path: "token",
		}},
		{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: resources.CAName(o.Pool)},
			Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
		}},
	}
	if w.TLS != nil && w.TLS.CASecret != "" {
		sources = append(sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: w.TLS.CASecret}, Optional: &yes,
			Items: []corev1.KeyToPath{{Key: w.TLS.CAKey, Path: engineCA}},
		}})
	}
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}
}

// mountOf is the mount of a container that holds a path; nil when none does.
func mountOf(c *corev1.Container, dir string) *corev1.VolumeMount {
	var best *corev1.VolumeMount
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		at, want := path.Clean(m.MountPath), path.Clean(dir)
		if (at == want || strings.HasPrefix(want, strings.TrimSuffix(at, "/")+"/")) &&
			(best == nil || len(at) > len(path.Clean(best.MountPath))) {
			best = m
		}
	}
	return best
}
