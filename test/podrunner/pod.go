package podrunner

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kvasir-dev/kvasir/test/kube"
)

var nothing = fields.Everything()

// pod is one pod's life.
type pod struct {
	*Runner
	uid     types.UID
	ip, dir string
	node    string
	stop    context.CancelFunc // ends it at once
	changed chan struct{}      // the object has changed
	gone    chan struct{}      // the object is gone

	lock       sync.Mutex // guards what follows
	object     *corev1.Pod
	abandoned  bool
	containers []*container
	told       string // the status last written
}

func (p *pod) update(o *corev1.Pod) {
	p.lock.Lock()
	p.object = o
	p.lock.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *pod) abandon() {
	p.lock.Lock()
	defer p.lock.Unlock()
	if !p.abandoned {
		p.abandoned = true
		close(p.gone)
	}
}

func (p *pod) now() *corev1.Pod {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.object
}

// run is the entire life: volumes, sidecars, containers, probes; then hooks and signals.
func (p *pod) run(ctx context.Context) {
	o := p.now()
	p.Log("%s starts at %s", o.Name, p.ip)
	mounts, err := p.volumes(ctx, o)
	if err != nil {
		p.Log("%s: %v", o.Name, err)
	}
	defer func() {
		for _, c := range slices.Backward(p.containers) {
			_ = c.signal(syscall.SIGKILL)
			c.wait()
		}
	}()
	if err == nil && o.DeletionTimestamp.IsZero() {
		for _, spec := range slices.Concat(sidecars(o), o.Spec.Containers) {
			c := p.container(ctx, o, spec, mounts)
			p.lock.Lock()
			p.containers = append(p.containers, c)
			p.lock.Unlock()
			c.start()
		}
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		o = p.now()
		if !o.DeletionTimestamp.IsZero() {
			break
		}
		p.tell(ctx, o)
		select {
		case <-ctx.Done():
			return
		case <-p.gone:
			return
		case <-p.changed:
			p.replace(ctx, p.now())
		case <-ticker.C:
			for _, c := range p.containers {
				c.revive(o)
				c.probe()
			}
		}
	}
	p.end(ctx, o)
	p.remove(ctx, o)
	p.Log("%s has ended", o.Name)
}

// replace restarts the containers whose images have changed.
func (p *pod) replace(ctx context.Context, o *corev1.Pod) {
	grace := time.Duration(ptr.Deref(o.Spec.TerminationGracePeriodSeconds, 30)) * time.Second
	for i, spec := range slices.Concat(sidecars(o), o.Spec.Containers) {
		if i >= len(p.containers) || !p.containers[i].replace(spec.Image, p.Programs[spec.Image]) {
			continue
		}
		p.Log("%s: container %s gets image %s", o.Name, spec.Name, spec.Image)
		go func() {
			ctx, cancel := context.WithTimeout(ctx, grace)
			defer cancel()
			p.containers[i].leave(ctx)
		}()
	}
}

// end stops the containers as a kubelet does: all preStop hooks at once, each container its SIGTERM after its own hook,
// sidecars after the containers, and SIGKILL for what is left when the grace is over.
func (p *pod) end(ctx context.Context, o *corev1.Pod) {
	grace := time.Duration(ptr.Deref(o.DeletionGracePeriodSeconds, 30)) * time.Second
	p.Log("%s is to end within %s", o.Name, grace)
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	go func() {
		select {
		case <-p.gone: // deleted by force
			cancel()
		case <-ctx.Done():
		}
	}()
	mains := p.containers[min(len(sidecars(o)), len(p.containers)):]
	var hooks sync.WaitGroup
	for _, c := range p.containers {
		hooks.Go(func() {
			c.hook(ctx)
			if slices.Contains(mains, c) {
				c.leave(ctx)
			}
		})
	}
	hooks.Wait()
	for _, c := range slices.Backward(p.containers) {
		c.leave(ctx)
	}
}

func sidecars(o *corev1.Pod) (all []corev1.Container) {
	for _, c := range o.Spec.InitContainers {
		if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

// volumes makes the pod's volumes and returns their directories by name.
func (p *pod) volumes(ctx context.Context, o *corev1.Pod) (map[string]string, error) {
	dirs := map[string]string{}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the pod's directory: %w", err)
	}
	for _, v := range o.Spec.Volumes {
		dir := filepath.Join(p.dir, "volumes", v.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("making volume %s: %w", v.Name, err)
		}
		dirs[v.Name] = dir
		switch {
		case v.Secret != nil:
			if err := p.secret(ctx, o.Namespace, v.Secret.SecretName, v.Secret.Items, ptr.Deref(v.Secret.Optional, false), dir); err != nil {
				return nil, err
			}
		case v.ConfigMap != nil:
			if err := p.configMap(ctx, o.Namespace, v.ConfigMap.Name, dir); err != nil {
				return nil, err
			}
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if err := p.source(ctx, o, s, dir); err != nil {
					return nil, err
				}
			}
		}
	}
	return dirs, nil
}

// secret writes a Secret's entries: all of them under their keys, or those that items list under their paths. One that is optional and does
// not exist has none; unlike the kubelet, this looks only once.
func (p *pod) secret(ctx context.Context, namespace, name string, items []corev1.KeyToPath, optional bool, dir string) error {
	return eventually(ctx, func() error {
		s, err := p.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if optional && apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading Secret %s: %w", name, err)
		}
		if len(items) == 0 {
			return write(dir, s.Data)
		}
		data := map[string][]byte{}
		for _, item := range items {
			data[item.Path] = s.Data[item.Key]
		}
		return write(dir, data)
	})
}

// secretValue is one entry of a Secret, for an environment variable. As the kubelet does, it waits for the Secret unless that is optional.
func (p *pod) secretValue(ctx context.Context, namespace string, ref *corev1.SecretKeySelector) (value string) {
	err := eventually(ctx, func() error {
		s, err := p.client.CoreV1().Secrets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil && ref.Optional != nil && *ref.Optional {
			return nil
		}
		if err != nil {
			return err
		}
		value = string(s.Data[ref.Key])
		return nil
	})
	if err != nil {
		p.Log("reading Secret %s: %v", ref.Name, err)
	}
	return value
}

func (p *pod) configMap(ctx context.Context, namespace, name, dir string) error {
	return eventually(ctx, func() error {
		m, err := p.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading ConfigMap %s: %w", name, err)
		}
		data := map[string][]byte{}
		for k, v := range m.Data {
			data[k] = []byte(v)
		}
		return write(dir, data)
	})
}

func (p *pod) source(ctx context.Context, o *corev1.Pod, s corev1.VolumeProjection, dir string) error {
	switch {
	case s.ConfigMap != nil:
		return p.configMap(ctx, o.Namespace, s.ConfigMap.Name, dir)
	case s.Secret != nil:
		return p.secret(ctx, o.Namespace, s.Secret.Name, s.Secret.Items, ptr.Deref(s.Secret.Optional, false), dir)
	case s.ServiceAccountToken != nil:
		account := o.Spec.ServiceAccountName
		if account == "" {
			account = "default"
		}
		return eventually(ctx, func() error {
			r, err := p.client.CoreV1().ServiceAccounts(o.Namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
				Spec: authenticationv1.TokenRequestSpec{
					Audiences: []string{s.ServiceAccountToken.Audience}, ExpirationSeconds: s.ServiceAccountToken.ExpirationSeconds,
					BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: o.Name, UID: o.UID},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("asking for a token: %w", err)
			}
			return write(dir, map[string][]byte{s.ServiceAccountToken.Path: []byte(r.Status.Token)})
		})
	}
	return nil
}

// eventually does something until it works, as kubelets mount: what a volume needs can be created later.
func eventually(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(tick):
		}
	}
}

func write(dir string, files map[string][]byte) error {
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return fmt.Errorf("writing a volume: %w", err)
		}
	}
	return nil
}

var (
	reference = regexp.MustCompile(`\$\(([A-Za-z0-9_.-]+)\)`)
	unnamed   = regexp.MustCompile(`^(--?[a-z-]+=)?:(\d+)$`)
)

// anyAddress has an engine bind its replay socket at every address of the machine.
const anyAddress = `"replay_endpoint":"tcp://*:`

// container makes a container's process, with what it says of itself replaced by what the pod has here.
func (p *pod) container(ctx context.Context, o *corev1.Pod, spec corev1.Container, dirs map[string]string) *container {
	env := map[string]string{}
	for _, e := range spec.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			env[e.Name] = p.secretValue(ctx, o.Namespace, e.ValueFrom.SecretKeyRef)
		}
		if e.ValueFrom == nil || e.ValueFrom.FieldRef == nil {
			continue
		}
		if label, ok := strings.CutPrefix(e.ValueFrom.FieldRef.FieldPath, "metadata.labels['"); ok {
			env[e.Name] = o.Labels[strings.TrimSuffix(label, "']")]
		}
		switch e.ValueFrom.FieldRef.FieldPath {
		case "metadata.uid":
			env[e.Name] = string(o.UID)
		case "metadata.name":
			env[e.Name] = o.Name
		case "metadata.namespace":
			env[e.Name] = o.Namespace
		case "status.podIP":
			env[e.Name] = p.ip
		}
	}
	here := func(s string) string {
		s = reference.ReplaceAllStringFunc(s, func(ref string) string {
			if v, ok := env[ref[2:len(ref)-1]]; ok {
				return v
			}
			return ref
		})
		for _, m := range spec.VolumeMounts {
			s = strings.ReplaceAll(s, m.MountPath, dirs[m.Name])
		}
		if s == "::" {
			return p.ip
		}
		withPort := net.JoinHostPort(p.ip, "")
		s = strings.ReplaceAll(s, anyAddress, strings.Replace(anyAddress, "*:", withPort, 1))
		for _, name := range []string{"127.0.0.1", "localhost", "0.0.0.0"} {
			s = strings.ReplaceAll(strings.ReplaceAll(s, name+":", withPort), name, p.ip)
		}
		return unnamed.ReplaceAllString(s, "${1}"+withPort+"${2}")
	}
	args := slices.Concat(spec.Command[min(1, len(spec.Command)):], spec.Args) // the program is that of the image
	for i := range args {
		args[i] = here(args[i])
	}
	if p.Rewrite != nil {
		args = p.Rewrite(o, spec.Name, args)
	}
	c := &container{spec: spec, program: p.Programs[spec.Image], args: args, ip: p.ip, log: filepath.Join(p.dir, spec.Name+".log")}
	c.env = append(os.Environ(), "POD_IP="+p.ip)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.env = append(c.env, name+"="+here(env[name]))
	}
	return c
}

// tell writes the pod's status if it has changed. Conditions of other writers stay.
func (p *pod) tell(ctx context.Context, o *corev1.Pod) {
	ready := true
	var containers, inits []corev1.ContainerStatus
	for i, c := range p.containers {
		s := c.status()
		ready = ready && s.Ready
		if i < len(sidecars(o)) {
			inits = append(inits, s)
		} else {
			containers = append(containers, s)
		}
	}
	all := ready
	for _, gate := range o.Spec.ReadinessGates {
		all = all && slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		})
	}
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: kube.Loopback(), PodIP: p.ip, PodIPs: addresses(p.ip),
		ContainerStatuses: containers, InitContainerStatuses: inits,
	}
	for kind, is := range map[corev1.PodConditionType]bool{
		corev1.PodScheduled: true, corev1.PodInitialized: true, corev1.ContainersReady: ready, corev1.PodReady: all,
	} {
		c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
		if is {
			c.Status = corev1.ConditionTrue
		}
		for _, was := range o.Status.Conditions {
			if was.Type == kind && was.Status == c.Status {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
		status.Conditions = append(status.Conditions, c)
	}
	slices.SortFunc(status.Conditions, func(a, b corev1.PodCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	key := fmt.Sprint(ready, all, containers, inits)
	if key == p.told {
		return
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.UID}, "status": status})
	if err != nil {
		panic(err)
	}
	if _, err := p.client.CoreV1().Pods(o.Namespace).Patch(ctx, o.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		p.Log("telling the status of %s: %v", o.Name, err)
		return
	}
	p.told = key
}

// get asks a container, and is content with an answer below 400.
func get(ctx context.Context, ip string, port int, path string) error {
	url := "http://" + net.JoinHostPort(ip, strconv.Itoa(port)) + "/" + strings.TrimPrefix(path, "/")
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("asking %s: %w", url, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("asking %s: status %s", url, answer.Status)
	}
	return nil
}

// check asks a container by gRPC whether a service serves.
func check(ctx context.Context, ip string, port int, service string) error {
	target := net.JoinHostPort(ip, strconv.Itoa(port))
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("asking %s: %w", target, err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		return fmt.Errorf("asking %s: %w", target, err)
	}
	if answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("asking %s: %s", target, answer.GetStatus())
	}
	return nil
}

// number of a port of a container.
func number(c *corev1.Container, port intstr.IntOrString) int {
	if port.Type == intstr.Int {
		return port.IntValue()
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort)
		}
	}
	return 0
}
