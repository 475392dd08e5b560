package replicas

import (
	"testing"

	pb "github.com/kvasir-dev/kvasir/internal/peerpb"
)

func TestNeighbouringReleasesUnderstandEachOther(t *testing.T) {
	for name, tc := range map[string]struct {
		protocol, oldest uint32
		want             bool
	}{
		"this release":                           {Protocol, 0, true},
		"this release, with its oldest":          {Protocol, Oldest, true},
		"the next one, which speaks this, too":   {Protocol + 1, Protocol, true},
		"a later one, which speaks all":          {Protocol + 7, Oldest, true},
		"one that speaks nothing of this":        {Protocol + 1, 0, false},
		"one that speaks only later ones":        {Protocol + 7, Protocol + 1, false},
		"one that is too old":                    {Oldest - 1, 0, false},
		"one that says nothing":                  {0, 0, false},
		"one whose oldest is newer than it, too": {Protocol, Protocol + 1, false},
	} {
		if got := Understood(tc.protocol, tc.oldest); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAReplicaOfTheNextReleaseIsHeard(t *testing.T) {
	w := newWorld(t, 1, 1, 1)
	next := &pb.Hello{Protocol: Protocol + 1, Oldest: Protocol, Incarnation: 9}
	if _, err := w.pickers[0].life.inbox.Open(w.now, &pb.PeerMessage{Kind: &pb.PeerMessage_Hello{Hello: next}}); err != nil {
		t.Error(err)
	}
}
