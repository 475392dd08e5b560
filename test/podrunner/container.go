package podrunner

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// container is a process and those that it starts, started again when it ends.
type container struct {
	args, env []string
	ip, log   string

	mu        sync.Mutex // guards what follows
	spec      corev1.Container
	program   string // of the image; "" for an image that does not exist
	process   *exec.Cmd
	guard     *exec.Cmd
	id        string
	ended     chan struct{} // closed when the process has
	started   time.Time
	last      *corev1.ContainerStateTerminated
	restarts  int32
	replaced  bool   // ended because of a new image, so that no pause is due
	startup   prober // passes once in a life
	readiness prober
	liveness  prober
}

// start begins the process, in a group of its own, which is killed when the process or this program ends.
func (c *container) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = make(chan struct{})
	c.started, c.replaced = time.Now(), false
	c.startup = prober{spec: c.spec.StartupProbe, counted: c.started}
	c.readiness = prober{spec: c.spec.ReadinessProbe, counted: c.started}
	c.liveness = prober{spec: c.spec.LivenessProbe, counted: c.started}
	out, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		c.process = exec.Command(c.program, c.args...)
		c.process.Env, c.process.Stdout, c.process.Stderr = c.env, out, out
		c.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		err = c.process.Start()
	}
	if err != nil {
		c.last = &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: err.Error(), FinishedAt: metav1.Now()}
		c.process = nil
		close(c.ended)
		return
	}
	group := c.process.Process.Pid
	c.id = "process://" + strconv.Itoa(group)
	c.guard = guard(group)
	go func(process, guard *exec.Cmd, ended chan struct{}) {
		_ = process.Wait()
		_ = syscall.Kill(-group, syscall.SIGKILL) // what the process has left, as when the first process of a container ends
		if guard != nil {
			_ = guard.Process.Kill()
			_ = guard.Wait()
		}
		_ = out.Close()
		c.mu.Lock()
		c.last = &corev1.ContainerStateTerminated{ExitCode: int32(process.ProcessState.ExitCode()), Reason: "Error", FinishedAt: metav1.Now()} // 0 to 255, or -1
		c.mu.Unlock()
		close(ended)
	}(c.process, c.guard, c.ended)
}

// guard returns a process that kills a group of processes when this program ends, however it ends: its input is a pipe of this
// program. It is nil if none could be started.
func guard(group int) *exec.Cmd {
	g := exec.Command("sh", "-c", `read x; kill -9 "-$1"`, "sh", strconv.Itoa(group))
	g.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := g.StdinPipe(); err != nil || g.Start() != nil {
		return nil
	}
	return g
}

// revive starts an ended process again, after a pause that grows with its crashes.
func (c *container) revive(o *corev1.Pod) {
	if o.Spec.RestartPolicy != corev1.RestartPolicyAlways || !c.over() {
		return
	}
	c.mu.Lock()
	pause := time.Duration(c.restarts) * time.Second
	wait := c.program == "" || !c.replaced && c.last != nil && time.Since(c.last.FinishedAt.Time) < min(pause, 10*time.Second)
	if !wait {
		c.restarts++
	}
	c.mu.Unlock()
	if !wait {
		c.start()
	}
}

// replace gives the container another image, as the kubelet does in a running pod: the old process ends first. It reports
// whether the image is another one.
func (c *container) replace(image, program string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spec.Image == image {
		return false
	}
	c.spec.Image, c.program, c.replaced = image, program, true
	return true
}

// over reports whether the process has ended.
func (c *container) over() bool {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	return closed(ended)
}

func closed(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

// wait returns when the present process has ended.
func (c *container) wait() {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	<-ended
}

// signal sends a signal to the process, or SIGKILL to its group.
func (c *container) signal(s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil || closed(c.ended) {
		return nil
	}
	pid := c.process.Process.Pid
	if s == syscall.SIGKILL {
		pid = -pid
	}
	if err := syscall.Kill(pid, s); err != nil {
		return fmt.Errorf("signalling %s: %w", c.spec.Name, err)
	}
	return nil
}

// leave sends SIGTERM and, when the grace is over, SIGKILL.
func (c *container) leave(ctx context.Context) {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	_ = c.signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-ctx.Done():
		_ = c.signal(syscall.SIGKILL)
		<-ended
	}
}

// hook runs the preStop hook, for as long as it takes within the grace.
func (c *container) hook(ctx context.Context) {
	if c.spec.Lifecycle == nil || c.spec.Lifecycle.PreStop == nil || c.over() {
		return
	}
	if h := c.spec.Lifecycle.PreStop.HTTPGet; h != nil {
		_ = get(ctx, c.ip, number(&c.spec, h.Port), h.Path)
	}
}

func (c *container) status() corev1.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	over := closed(c.ended)
	s := corev1.ContainerStatus{Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, ContainerID: c.id, RestartCount: c.restarts}
	started := !over && c.startup.passes()
	s.Started = &started
	switch {
	case !over:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.started.Truncate(time.Second))}
		s.Ready = started && c.readiness.passes()
	case c.program == "":
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no image is named " + c.spec.Image}
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	}
	if c.last != nil {
		s.LastTerminationState.Terminated = c.last.DeepCopy()
	}
	return s
}
