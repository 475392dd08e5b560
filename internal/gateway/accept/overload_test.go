package accept

import (
	"net"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/overload"
)

// short is a manager with everything in force.
func short() *overload.Manager {
	m := new(overload.Manager)
	m.Observe(overload.Usage{Used: [overload.NumResources]int64{99}, Limit: [overload.NumResources]int64{100}})
	return m
}

// TestNoConnectionIsTakenWhileResourcesAreShort: those that are open stay.
func TestNoConnectionIsTakenWhileResourcesAreShort(t *testing.T) {
	for _, tc := range []struct {
		manager *overload.Manager
		want    int
	}{{nil, 8}, {new(overload.Manager), 8}, {short(), 0}} {
		raw, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if n := accepted(t, Limit(raw, 100, nil).During(tc.manager), 8); n != tc.want {
			t.Errorf("%d connections are taken, want %d", n, tc.want)
		}
		if tc.want == 0 && tc.manager.State().Refused[overload.Connections] != 8 {
			t.Errorf("refused: %v", tc.manager.State().Refused)
		}
	}
}
