package freeport

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// TestPortsAreFreeAndGivenOnce: what is listened on, or was given before, is not given.
func TestPortsAreFreeAndGivenOnce(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		const n = 3
		from, err := Consecutive("127.0.0.1", n)
		if err != nil {
			t.Fatal(err)
		}
		for port := from; port < from+n; port++ {
			if seen[port] || port < first || port >= end {
				t.Fatalf("port %d", port)
			}
			seen[port] = true
		}
	}
	addresses, err := Addresses("127.0.0.1", 200)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(port)
		if err != nil || seen[n] {
			t.Fatal(address, err)
		}
		seen[n] = true
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if isFree("127.0.0.1", n) {
			t.Errorf("%s is listened on", address)
		}
	}
	if _, err := Addresses("192.0.2.1", 1); err == nil {
		t.Error("ports of an address that this machine does not have")
	}
}

// TestPortsAreGivenToOneProcess: another process draws the same number before a program listens on its port, and is not given it.
func TestPortsAreGivenToOneProcess(t *testing.T) {
	const n = 50
	from, err := Consecutive("127.0.0.1", n)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []int{from, from + n - 1} {
		if !isFree("127.0.0.1", port) {
			t.Errorf("port %d is not left for the program that it is for", port)
		}
		another := exec.Command(os.Args[0], "-test.run=^TestThisPortIsNotGiven$")
		another.Env = append(os.Environ(), "KVASIR_FREEPORT="+strconv.Itoa(port))
		if out, err := another.CombinedOutput(); err != nil {
			t.Errorf("port %d: %v\n%s", port, err, out)
		}
	}
}

// TestThisPortIsNotGiven is the other process: it draws the number that the first one was given.
func TestThisPortIsNotGiven(t *testing.T) {
	taken, err := strconv.Atoi(os.Getenv("KVASIR_FREEPORT"))
	if err != nil {
		t.Skip("a process of TestPortsAreGivenToOneProcess")
	}
	if got, err := consecutive("127.0.0.1", 1, taken); err != nil || got == taken {
		t.Errorf("given port %d: %v", got, err)
	}
}
