package podrunner

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// create makes a pod of one container, which is deleted with the test.
func create(t *testing.T, c kubernetes.Interface, name string, spec corev1.Container) {
	t.Helper()
	_, err := c.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{spec}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func patch(t *testing.T, c kubernetes.Interface, name, change string) {
	t.Helper()
	if _, err := c.CoreV1().Pods("default").Patch(t.Context(), name, types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestAChangedImageRestartsItsContainer: one that does not exist cannot be pulled, and the next one runs.
func TestAChangedImageRestartsItsContainer(t *testing.T) {
	c, _ := start(t)
	notes := filepath.Join(t.TempDir(), "notes")
	create(t, c, "changed", webContainer("main", ":8000", notes))
	before := until(t, c, "changed", "ready", isReady).Status.ContainerStatuses[0].ContainerID
	patch(t, c, "changed", `{"spec":{"containers":[{"name":"main","image":"missing"}]}}`)
	p := until(t, c, "changed", "without an image", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].State.Waiting != nil })
	if reason := p.Status.ContainerStatuses[0].State.Waiting.Reason; reason != "ImagePullBackOff" || isReady(p) {
		t.Errorf("reason %s, ready %v", reason, isReady(p))
	}
	patch(t, c, "changed", `{"spec":{"containers":[{"name":"main","image":"web"}]}}`)
	p = until(t, c, "changed", "ready again", isReady)
	if s := p.Status.ContainerStatuses[0]; s.ContainerID == before || s.RestartCount == 0 {
		t.Errorf("container %s was %s, %d restarts", s.ContainerID, before, s.RestartCount)
	}
}

// TestProbesHaveTheirThresholds: a container is ready when it has started, stays so for fewer failures than its threshold, and is
// restarted when it no longer lives.
func TestProbesHaveTheirThresholds(t *testing.T) {
	c, _ := start(t)
	notes := filepath.Join(t.TempDir(), "notes")
	unready := notes + ".unready"
	if err := os.WriteFile(unready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	probe := func(path string, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8000)}},
			PeriodSeconds: 1, FailureThreshold: failures,
		}
	}
	main := webContainer("main", ":8000", notes)
	main.StartupProbe, main.ReadinessProbe, main.LivenessProbe = probe("/ready", 60), probe("/alive", 1000), probe("/ready", 2)
	create(t, c, "probed", main)
	until(t, c, "probed", "running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		until(t, c, "probed", "there", func(p *corev1.Pod) bool {
			if isReady(p) || p.Status.ContainerStatuses[0].RestartCount > 0 {
				t.Fatalf("before it has started: %+v", p.Status)
			}
			return true
		})
	}
	if err := os.Remove(unready); err != nil {
		t.Fatal(err)
	}
	until(t, c, "probed", "ready", isReady)
	if err := os.WriteFile(unready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := until(t, c, "probed", "restarted", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.RestartCount > 0 && s.Started != nil && !*s.Started
	})
	if isReady(p) {
		t.Error("ready before it has started again")
	}
}

// TestPodsAvoidNodesThatGoAway, and those of a lost node end with it.
func TestPodsAvoidNodesThatGoAway(t *testing.T) {
	c, r := start(t)
	if err := r.AddNode(t.Context(), "there"); err != nil {
		t.Fatal(err)
	}
	cordon := func(name, yes string) {
		t.Helper()
		change := []byte(`{"spec":{"unschedulable":` + yes + `}}`)
		if _, err := c.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, change, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cordon("here", "true")
	notes := filepath.Join(t.TempDir(), "notes")
	create(t, c, "one", webContainer("main", ":8000", notes))
	if p := until(t, c, "one", "ready", isReady); p.Spec.NodeName != "there" {
		t.Errorf("on node %s, which is cordoned", p.Spec.NodeName)
	}
	cordon("there", "true")
	create(t, c, "two", webContainer("main", ":8000", notes))
	if two := until(t, c, "two", "there", func(p *corev1.Pod) bool { return p != nil }); two.Spec.NodeName != "" {
		t.Errorf("on node %s, and all are cordoned", two.Spec.NodeName)
	}
	cordon("here", "false")
	two := until(t, c, "two", "ready", isReady)
	one := until(t, c, "one", "ready", isReady)
	r.LoseNode("there")
	for end := time.Now().Add(30 * time.Second); get(t.Context(), one.Status.PodIP, 8000, "/ready") == nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a process of a lost node goes on")
		}
	}
	if err := get(t.Context(), two.Status.PodIP, 8000, "/ready"); err != nil || two.Spec.NodeName != "here" {
		t.Errorf("pod two on node %s: %v", two.Spec.NodeName, err)
	}
	until(t, c, "one", "as its node left it", isReady) // no kubelet writes its status any more
}

// TestAContainerEndsWithAllItsProcesses: what the first process has started ends with it, and can be ended without it.
func TestAContainerEndsWithAllItsProcesses(t *testing.T) {
	dir := t.TempDir()
	c := &container{program: "/bin/sh", args: []string{"-c", `sleep 1000 & echo $! > "$0/child"; sleep 1000`, dir}, log: filepath.Join(dir, "log")}
	c.start()
	child := func() string {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			text, err := os.ReadFile(filepath.Join(dir, "child"))
			if err == nil && strings.HasSuffix(string(text), "\n") {
				return strings.TrimSpace(string(text))
			}
			if time.Now().After(end) {
				t.Fatal("no child")
			}
		}
	}()
	below, err := descendants(c.process.Process.Pid)
	if err != nil || len(below) == 0 {
		t.Fatalf("descendants %v: %v", below, err)
	}
	if err := c.process.Process.Signal(syscall.SIGTERM); err != nil { // to the shell alone
		t.Fatal(err)
	}
	c.wait()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		// A process that has ended and waits to be reaped is in state Z.
		stat, err := os.ReadFile("/proc/" + child + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %s goes on", child)
		}
	}
}
