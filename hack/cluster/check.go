//go:build linux

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// tools of the distribution, by the package of Debian that has them.
var tools = map[string]string{
	"ip": "iproute2", "nft": "nftables", "nsenter": "util-linux", "runc": "runc",
}

// check reports everything that the machine lacks.
func (c *cluster) check() error {
	if os.Geteuid() != 0 {
		return errors.New("a node needs root, for namespaces, mounts and control groups")
	}
	var errs []error
	var missing []string
	for _, tool := range slices.Sorted(maps.Keys(tools)) {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tools[tool])
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("programs are missing; on Debian and Ubuntu: apt-get install --no-install-recommends %s",
			strings.Join(missing, " ")))
	}
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("reading what file systems there are: %w", err)
	}
	if !strings.Contains(string(known), "\toverlay\n") {
		errs = append(errs, errors.New("the kernel has no overlay file system: modprobe overlay"))
	}
	for _, dir := range hidden {
		if strings.HasPrefix(c.root+"/", dir+"/") {
			errs = append(errs, fmt.Errorf("the repository lies below %s, which nodes have of their own: move it", dir))
		}
	}
	return errors.Join(append(errs, c.checkAddresses(), c.checkOthers())...)
}

// checkAddresses fails if something else on the machine uses the cluster's addresses.
func (c *cluster) checkAddresses() error {
	var errs []error
	for _, prefix := range []string{pods, services, "10.200.0.0/23"} {
		for _, how := range []string{"root", "match"} {
			out, err := exec.Command("ip", "-4", "route", "show", "table", "all", how, prefix).Output() //nolint:noctx // constants
			if err != nil {
				continue // without ip, which check reports
			}
			for line := range strings.Lines(string(out)) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "default") && !strings.Contains(line, "dev "+hostLink) {
					errs = append(errs, fmt.Errorf("the addresses %s are in use: %s", prefix, line))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// snapshotter that the file system of the state can have.
func (c *cluster) snapshotter() string {
	var s unix.Statfs_t
	if err := unix.Statfs(c.state, &s); err == nil && s.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native" // an overlay cannot be on top of another
	}
	return "overlayfs"
}
