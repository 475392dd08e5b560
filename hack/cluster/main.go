//go:build linux

// cluster is a Kubernetes cluster for tests on one Linux machine, with real kubelets and real containers, and without a
// container daemon or a registry: everything is built from Go modules, except runc and nft.
//
//	cluster up      build what is missing and start the cluster, or load new images into the one that runs
//	cluster check   say what the machine lacks
//	cluster down    end it and remove what it has left
//	cluster exec NODE COMMAND...   run a command in a node's namespaces
//
// Each node is a set of namespaces (mount, pid, net, uts, ipc) whose first process is this program again (node.go). Its
// end takes all processes, mounts and network rules with it. Of the machine itself only this is used, and given back: a
// pair of virtual interfaces with two routes, by which tests reach pods and Services; a control group with the name of the
// cluster; and the directory of the state.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("cluster: ")
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	f := flag.NewFlagSet("cluster", flag.ExitOnError)
	root := f.String("root", ".", "`directory` of the repository")
	f.Usage = func() {
		_, _ = fmt.Fprintln(f.Output(), "usage: cluster [-root DIR] up | check | down | exec NODE COMMAND...")
		f.PrintDefaults()
	}
	if err := f.Parse(os.Args[1:]); err != nil {
		return err
	}
	dir, err := filepath.Abs(*root)
	if err != nil {
		return fmt.Errorf("finding the repository: %w", err)
	}
	c := &cluster{root: dir, state: filepath.Join(dir, "out", "cluster"), programs: filepath.Join(dir, "bin", "cluster"),
		kube: filepath.Join(dir, "bin", "kube"), groups: groupRoot}
	switch args := f.Args(); {
	case len(args) == 1 && args[0] == "up":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return c.up(ctx)
	case len(args) == 1 && args[0] == "check":
		return c.check()
	case len(args) == 1 && args[0] == "down":
		return c.down()
	case len(args) > 2 && args[0] == "exec":
		return c.exec(args[1], args[2:])
	case len(args) == 2 && args[0] == "node": // started by up as the first process of a node
		return c.node(args[1])
	}
	f.Usage()
	return errors.New("this is no command")
}

// cluster has the paths and settings of the cluster.
type cluster struct {
	root, state, programs, kube string
	groups                      string // where control groups are
}

func (c *cluster) file(parts ...string) string {
	return filepath.Join(append([]string{c.state}, parts...)...)
}

// Addresses. Tests use them too; see docs/cluster.md.
const (
	services   = "10.96.0.0/16"
	apiService = "10.96.0.1"
	dnsService = "10.96.0.10"
	pods       = "10.244.0.0/16"
	hostLink   = "kvasir0" // this machine's end of the way to the nodes
	hostIP     = "10.200.0.1"
	group      = "kvasir-cluster" // control group of all pods
)

// nodeSpec is one of the cluster's nodes. The first has the control plane, and the way to the machine; the others are
// behind it.
type nodeSpec struct {
	name    string
	address string // its own
	gateway string // the other end of its way, /30
	pods    string // addresses of its pods
}

var nodes = []nodeSpec{
	{name: "kvasir-0", address: "10.200.0.2", gateway: hostIP, pods: "10.244.0.0/24"},
	{name: "kvasir-1", address: "10.200.1.2", gateway: "10.200.1.1", pods: "10.244.1.0/24"},
}

func nodeIndex(name string) (int, error) {
	for i, n := range nodes {
		if n.name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("there is no node %q", name)
}
