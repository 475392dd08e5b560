package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

const apiServer = "kube-apiserver"

// Freeze stops the API server where it is, as a machine that hangs: connections stay, and nothing is answered.
func (c *Cluster) Freeze() error {
	pid, err := c.Process(apiServer)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freezing the API server: %w", err)
	}
	return nil
}

// Crash ends the API server at once, frozen or not. What it has stored stays in etcd. Recover starts it again.
func (c *Cluster) Crash() error {
	pid, err := c.Process(apiServer)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return fmt.Errorf("reading how the API server was started: %w", err)
	}
	c.crashed = strings.Split(string(bytes.TrimSuffix(raw, []byte{0})), "\x00")
	if p := c.recovered; p != nil { // it is to end now
		c.recovered = nil
		_ = p.cmd.Process.Kill()
		<-p.done
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("ending the API server: %w", err)
	}
	// Its port is in use until its last thread has ended. The first one is a zombie before; then the process is waited for, and gone.
	for begin := time.Now(); time.Since(begin) < stopTimeout; {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); os.IsNotExist(err) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("the API server has not ended within %v of its being killed", stopTimeout)
}

// Recover starts the API server again after a crash, on what it had stored, and waits until it is ready. If another program has taken its
// port meanwhile, it waits for that, too.
func (c *Cluster) Recover(ctx context.Context) error {
	if len(c.crashed) == 0 {
		return errors.New("the API server has not crashed")
	}
	arguments := c.crashed[1:]
	c.crashed = nil
	client, err := rest.HTTPClientFor(rest.CopyConfig(c.Config))
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		p, err := launch(filepath.Join(c.assets, apiServer), filepath.Join(c.dir, apiServer+".log"), arguments...)
		if err != nil {
			return err
		}
		c.recovered = p
		err = c.becomesReady(ctx, client, p)
		if err == nil || ctx.Err() != nil || !strings.Contains(p.tail(), "address already in use") {
			return err
		}
	}
}

// becomesReady waits until a new API server is ready. It fails if that has ended.
func (c *Cluster) becomesReady(ctx context.Context, client *http.Client, p *program) error {
	for {
		err := c.ready(ctx, client)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the API server: %w: %s", err, p.tail())
		case <-p.done:
			return fmt.Errorf("the API server has ended: %w: %s", p.err, p.tail())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *Cluster) ready(ctx context.Context, client *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // another program on the port can leave a client waiting
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.Config.Host, "/")+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("asking the API server: %w", err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("asking the API server: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server says %s", answer.Status)
	}
	return nil
}
