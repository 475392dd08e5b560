package rpc

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

func TestARequestInFlightIsCountedForItsOwnPodOnly(t *testing.T) {
	count := func(id endpoint.ID) int { return map[endpoint.ID]int{{Pod: "uid-1"}: 3, {Pod: "uid-2"}: 9}[id] }
	for name, tc := range map[string]struct {
		o     ServerOptions
		pod   string
		n     int
		known bool
		want  codes.Code
	}{
		"its own":                         {ServerOptions{InFlight: count, Auth: briefly{d: time.Minute}}, "uid-1", 3, true, codes.OK},
		"without proof that is asked for": {ServerOptions{InFlight: count}, "uid-2", 9, true, codes.OK},
		"another pod's":                   {ServerOptions{InFlight: count, Auth: briefly{d: time.Minute}}, "uid-2", 0, false, codes.PermissionDenied},
		"without a pod":                   {ServerOptions{InFlight: count}, "", 0, false, codes.PermissionDenied},
		"of a picker that does not count": {ServerOptions{}, "uid-1", 0, false, codes.OK},
		"fewer than none":                 {ServerOptions{InFlight: func(endpoint.ID) int { return -1 }}, "uid-1", 0, true, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPicker(t, "127.0.0.1:0", tc.o)
			c, err := Dial(p.addr, DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			n, known, err := c.InFlight(context.Background(), endpoint.ID{Pod: tc.pod})
			if n != tc.n || known != tc.known || status.Code(err) != tc.want {
				t.Errorf("%d requests, known %v, %v", n, known, err)
			}
		})
	}
}
