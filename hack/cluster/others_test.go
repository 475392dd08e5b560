//go:build linux

package main

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// elsewhere runs a test in a network of its own, which has an interface of the cluster's name that somebody else has made.
func elsewhere(t *testing.T, do func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a network takes root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("there is no ip")
	}
	done := make(chan struct{})
	go func() { // its thread ends with it, and the network with the thread
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("making a network: %v", err)
			return
		}
		if out, err := exec.CommandContext(t.Context(), "ip", "link", "add", hostLink, "type", "veth", "peer", "name", "other0").CombinedOutput(); err != nil {
			t.Errorf("making an interface: %v: %s", err, out)
			return
		}
		do(t)
	}()
	<-done
}

func there() bool { _, err := net.InterfaceByName(hostLink); return err == nil }

func TestWhatAnotherClusterHasMadeStays(t *testing.T) {
	elsewhere(t, func(t *testing.T) {
		c := &cluster{state: t.TempDir(), groups: t.TempDir()}
		if err := c.checkOthers(); err == nil || !strings.Contains(err.Error(), hostLink) {
			t.Errorf("the other cluster's interface is no hindrance: %v", err)
		}
		if err := c.down(); err != nil {
			t.Error(err)
		}
		if !there() {
			t.Error("the other cluster has lost its interface")
		}
		// A claim of the time before the machine was started again is none.
		if err := os.WriteFile(c.file(claim), []byte("another boot\n"), 0o600); err != nil {
			t.Error(err)
			return
		}
		if err := c.checkOthers(); err == nil {
			t.Error("what was made before the machine was started again counts as its own")
		}
		if err := c.down(); err != nil || !there() {
			t.Errorf("the other cluster has lost its interface: %v", err)
		}
	})
}

func TestWhatTheMachineLacksIsNamedAllAtOnce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("without root that is all that is said")
	}
	c := &cluster{root: "/var/lib/kvasir", state: t.TempDir(), groups: t.TempDir()}
	t.Setenv("PATH", t.TempDir())
	err := c.check()
	for _, want := range []string{"apt-get install --no-install-recommends iproute2 nftables util-linux runc", "lies below /var/lib"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing is said of %q: %v", want, err)
		}
	}
}

func TestWhatTheClusterHasMadeGoes(t *testing.T) {
	for name, owned := range map[string]func(c *cluster) error{
		"noted, and its nodes have ended": func(c *cluster) error {
			now, err := boot()
			if err != nil {
				return err
			}
			return os.WriteFile(c.file(claim), now, 0o600)
		},
		"a node of it runs": func(c *cluster) error {
			cmd := exec.Command("sleep", "100")
			if err := cmd.Start(); err != nil {
				return err
			}
			go func() { _ = cmd.Wait() }() // down kills it
			birth, err := birthOf(cmd.Process.Pid)
			if err != nil {
				return err
			}
			if err := os.Mkdir(c.file(nodes[1].name), 0o700); err != nil {
				return err
			}
			return os.WriteFile(c.file(nodes[1].name, "pid"), []byte(strconv.Itoa(cmd.Process.Pid)+" "+birth), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			elsewhere(t, func(t *testing.T) {
				c := &cluster{state: t.TempDir(), groups: t.TempDir()}
				if err := owned(c); err != nil {
					t.Error(err)
					return
				}
				if err := c.checkOthers(); err != nil {
					t.Errorf("its own interface is a hindrance: %v", err)
				}
				for range 2 { // the second time there is nothing to do
					if err := c.down(); err != nil || there() {
						t.Errorf("its interface is left (%v)", err)
					}
				}
				left, err := os.ReadDir(c.state)
				if err != nil || len(left) != 0 {
					t.Errorf("its directory has %v (%v)", left, err)
				}
			})
		})
	}
}
