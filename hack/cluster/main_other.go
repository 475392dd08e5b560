//go:build !linux

// cluster is a Kubernetes cluster for tests on one Linux machine.
package main

import "log"

func main() { log.Fatal("cluster: a node needs Linux") }
