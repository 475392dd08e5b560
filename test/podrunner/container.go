package podrunner

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// container is a process, started again when it ends.
type container struct {
	spec      corev1.Container
	program   string
	args, env []string
	ip, log   string

	mu       sync.Mutex // guards what follows
	process  *exec.Cmd
	ended    chan struct{} // closed when the process has
	started  time.Time
	last     *corev1.ContainerStateTerminated
	restarts int32
	probing  bool
	probed   bool // the last probe's answer
}

// start begins the process.
func (c *container) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = make(chan struct{})
	c.started, c.probed = time.Now(), false
	out, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		c.process = exec.Command(c.program, c.args...)
		c.process.Env, c.process.Stdout, c.process.Stderr = c.env, out, out
		c.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err = c.process.Start()
	}
	if err != nil {
		c.last = &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: err.Error(), FinishedAt: metav1.Now()}
		c.process = nil
		close(c.ended)
		return
	}
	go func(process *exec.Cmd, ended chan struct{}) {
		_ = process.Wait()
		_ = out.Close()
		c.mu.Lock()
		c.last = &corev1.ContainerStateTerminated{ExitCode: int32(process.ProcessState.ExitCode()), Reason: "Error", FinishedAt: metav1.Now()} // 0 to 255, or -1
		c.mu.Unlock()
		close(ended)
	}(c.process, c.ended)
}

// revive starts an ended process again, after a pause that grows with its crashes.
func (c *container) revive(o *corev1.Pod) {
	if o.Spec.RestartPolicy != corev1.RestartPolicyAlways || !c.over() {
		return
	}
	c.mu.Lock()
	pause := time.Duration(c.restarts) * time.Second
	wait := c.last != nil && time.Since(c.last.FinishedAt.Time) < min(pause, 10*time.Second)
	if !wait {
		c.restarts++
	}
	c.mu.Unlock()
	if !wait {
		c.start()
	}
}

// over reports whether the process has ended.
func (c *container) over() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

func (c *container) wait() { <-c.ended }

func (c *container) signal(s os.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil || c.over() {
		return nil
	}
	if err := c.process.Process.Signal(s); err != nil {
		return fmt.Errorf("signalling %s: %w", c.spec.Name, err)
	}
	return nil
}

// leave sends SIGTERM and, when the grace is over, SIGKILL.
func (c *container) leave(ctx context.Context) {
	_ = c.signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-ctx.Done():
		_ = c.signal(os.Kill)
		c.wait()
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

// probe asks in the background whether the container is ready.
func (c *container) probe() {
	if c.over() || c.spec.ReadinessProbe == nil || c.spec.ReadinessProbe.HTTPGet == nil && c.spec.ReadinessProbe.GRPC == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probing {
		return
	}
	c.probing = true
	probe, ended := c.spec.ReadinessProbe, c.ended
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var err error
		if probe.GRPC != nil {
			err = check(ctx, c.ip, int(probe.GRPC.Port), ptr.Deref(probe.GRPC.Service, ""))
		} else {
			err = get(ctx, c.ip, number(&c.spec, probe.HTTPGet.Port), probe.HTTPGet.Path)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.probing = false
		if c.ended == ended {
			c.probed = err == nil
		}
	}()
}

func (c *container) status() corev1.ContainerStatus {
	over := c.over()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := corev1.ContainerStatus{Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, RestartCount: c.restarts}
	started := !over
	s.Started = &started
	if over {
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	} else {
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.started.Truncate(time.Second))}
		s.Ready = c.spec.ReadinessProbe == nil || c.probed
	}
	if c.last != nil {
		s.LastTerminationState.Terminated = c.last.DeepCopy()
	}
	return s
}
