package rpc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	pb "github.com/kvasir-dev/kvasir/internal/reportpb"
)

// refuseAll rejects every client.
type refuseAll struct{}

func (refuseAll) Authenticate(context.Context) (Identity, error) {
	return Identity{}, errors.New("the token is signed by an unknown key")
}

func TestRefusedReportersAreLoggedOnceAMinute(t *testing.T) {
	now := time.Unix(1000, 0)
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	s := NewServer(ServerOptions{
		Log: log, Now: func() time.Time { return now }, Auth: refuseAll{}, InFlight: func(endpoint.ID) int { return 0 },
	})
	ask := func(n int) {
		for range n {
			if _, err := s.InFlight(t.Context(), &pb.Hello{}); err == nil {
				t.Fatal("a reporter without a name is not refused")
			}
		}
	}
	ask(100)
	now = now.Add(refusalLogPause)
	ask(2)
	if len(lines) != 2 || !strings.Contains(lines[0], "unknown key") || !strings.Contains(lines[1], `"suppressed"=99`) {
		t.Errorf("the log has %q", lines)
	}
	// Another kind of refusal has its own line.
	s.options.Auth = briefly{d: time.Minute}
	ask(2)
	if n := len(lines); n != 3 || !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "not the reporter's own") }) {
		t.Errorf("the log has %q", lines)
	}
}
