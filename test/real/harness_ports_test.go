package real

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// drawn are the ports that freePort has given.
var drawn = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// freePort finds n consecutive ports that no process listens on, below those of outgoing connections.
func freePort(t *testing.T, n int) int {
	t.Helper()
	drawn.Lock()
	defer drawn.Unlock()
	for range 1000 {
		first, free := 10_000+rand.IntN(20_000), true
		for port := first; port < first+n && free; port++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if free = err == nil && !drawn.ports[port]; err == nil {
				_ = l.Close()
			}
		}
		if free {
			for port := first; port < first+n; port++ {
				drawn.ports[port] = true
			}
			return first
		}
	}
	t.Fatal("no port is free")
	return 0
}
