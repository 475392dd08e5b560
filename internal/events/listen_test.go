package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/kvevent"
)

// fakeCaller is a publisher that has connected.
type fakeCaller struct {
	peer     string
	messages chan [][]byte
	closing  sync.Once
	closed   chan struct{}
}

func newCaller(peer string) *fakeCaller {
	return &fakeCaller{peer: peer, messages: make(chan [][]byte, 16), closed: make(chan struct{})}
}

func (c *fakeCaller) Peer() string { return c.peer }

func (c *fakeCaller) Recv() ([][]byte, error) {
	select {
	case m := <-c.messages:
		return m, nil
	case <-c.closed:
		return nil, io.EOF
	}
}

func (c *fakeCaller) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return nil
}

func (c *fakeCaller) gone() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// say sends a batch that stores one block.
func (c *fakeCaller) say(topic string, seq uint64, block kvevent.Hash) {
	c.messages <- [][]byte{[]byte(topic), binary.BigEndian.AppendUint64(nil, seq), encode(chain(0, block))}
}

// lobby is a reception in front of streams.
type lobby struct {
	t         *testing.T
	reception *Reception
	manager   *Manager
	indexes   map[string]*fakeIndex // by pod/rank
	feeds     []Feed
}

func newLobby(t *testing.T, endpoints ...endpoint.Endpoint) *lobby {
	l := &lobby{t: t, reception: NewReception(logr.Discard()), indexes: map[string]*fakeIndex{}}
	config := testConfig(newFakeEngine())
	config.Reception = l.reception
	l.manager = New(config)
	for _, ep := range endpoints {
		x := newFakeIndex()
		f := testFeed(x)
		f.Endpoint = ep
		l.indexes[ep.ID.String()], l.feeds = x, append(l.feeds, f)
	}
	l.manager.Set("p", l.feeds)
	return l
}

// call lets a publisher dial the port of a rank.
func (l *lobby) call(peer string, rank int) *fakeCaller {
	c := newCaller(peer)
	go l.reception.Take(c, rank)
	synctest.Wait()
	return c
}

// held is which pods' indexes hold the block.
func (l *lobby) held(block kvevent.Hash) string {
	synctest.Wait()
	var all []string
	for _, f := range l.feeds {
		if _, ok := l.indexes[f.Endpoint.ID.String()].snapshot()[place{Key: keyOf(block)}]; ok {
			all = append(all, f.Endpoint.ID.String())
		}
	}
	return strings.Join(all, " ")
}

func (l *lobby) strangers() string {
	var all []string
	for why, n := range l.reception.Strangers() {
		if n > 0 {
			all = append(all, fmt.Sprintf("%s=%d", Stranger(why), n))
		}
	}
	return strings.Join(all, " ")
}

// dialer is an endpoint whose publisher dials in.
func dialer(uid, address string, rank, dialRank int) endpoint.Endpoint {
	return endpoint.Endpoint{
		ID: endpoint.ID{Pod: uid, Rank: rank}, Pod: "pod-" + uid, Namespace: "ns", Address: address, DialsIn: true, EventRank: dialRank,
	}
}

func TestAPublisherIsWhoItsTopicAndItsAddressSay(t *testing.T) {
	one := []endpoint.Endpoint{dialer("a", "10.0.0.1:8000", 0, 0), dialer("b", "10.0.0.2:8000", 0, 0)}
	shared := []endpoint.Endpoint{dialer("a", "10.0.0.1:8000", 0, 0), dialer("b", "10.0.0.1:8001", 0, 0)}
	ranks := []endpoint.Endpoint{dialer("a", "10.0.0.1:8000", 0, 8), dialer("a", "10.0.0.1:8000", 1, 9)}
	ports := []endpoint.Endpoint{dialer("a", "10.0.0.1:8000", 0, 0), dialer("a", "10.0.0.1:8001", 1, 1)}
	six := []endpoint.Endpoint{dialer("a", "[fd00::1]:8000", 0, 0)}
	for name, tc := range map[string]struct {
		endpoints   []endpoint.Endpoint
		peer, topic string
		rank        int
		want        string // the endpoint that holds the block, or the reason that none does
	}{
		"its address":                      {one, "10.0.0.2:4000", "kv@10.0.0.2@m", 0, "b/0"},
		"its address and port":             {one, "10.0.0.2:4000", "kv@10.0.0.2:8000@m", 0, "b/0"},
		"its name":                         {one, "10.0.0.2:4000", "kv@pod-b@m", 0, "b/0"},
		"its namespace and name":           {one, "10.0.0.2:4000", "kv@ns/pod-b@m", 0, "b/0"},
		"its UID":                          {one, "10.0.0.2:4000", "kv@b@m", 0, "b/0"},
		"a model with an at sign":          {one, "10.0.0.2:4000", "kv@b@org/m@v2", 0, "b/0"},
		"an IPv4 address in IPv6":          {one, "[::ffff:10.0.0.2]:4000", "kv@b@m", 0, "b/0"},
		"IPv6":                             {six, "[fd00::1]:4000", "kv@fd00::1@m", 0, "a/0"},
		"IPv6 with a port":                 {six, "[fd00::1]:4000", "kv@[fd00::1]:8000@m", 0, "a/0"},
		"two pods of one address, by port": {shared, "10.0.0.1:4000", "kv@10.0.0.1:8001@m", 0, "b/0"},
		"two pods of one address, by name": {shared, "10.0.0.1:4000", "kv@pod-b@m", 0, "b/0"},
		"a rank by the port dialed":        {ranks, "10.0.0.1:4000", "kv@pod-a@m", 9, "a/1"},
		"a rank by the shared port":        {ranks, "10.0.0.1:4000", "kv@10.0.0.1:8000@m", 9, "a/1"},
		"a rank by its own port":           {ports, "10.0.0.1:4000", "kv@10.0.0.1:8001@m", 0, "a/1"},
		"a rank of its own port by number": {ports, "10.0.0.1:4000", "kv@a@m", 1, "a/1"},

		"an unknown address":             {one, "10.0.0.3:4000", "kv@10.0.0.3@m", 0, "NoAddress=1"},
		"an unknown address, a pod":      {one, "10.0.0.3:4000", "kv@b@m", 0, "NoAddress=1"},
		"another pod's name":             {one, "10.0.0.2:4000", "kv@pod-a@m", 0, "OtherPod=1"},
		"another pod's address":          {one, "10.0.0.2:4000", "kv@10.0.0.1@m", 0, "OtherPod=1"},
		"another port":                   {one, "10.0.0.2:4000", "kv@10.0.0.2:8001@m", 0, "OtherPod=1"},
		"no topic":                       {one, "10.0.0.2:4000", "", 0, "NoTopic=1"},
		"another kind of topic":          {one, "10.0.0.2:4000", "b", 0, "NoTopic=1"},
		"a topic without a model":        {one, "10.0.0.2:4000", "kv@b", 0, "NoTopic=1"},
		"a topic without a pod":          {one, "10.0.0.2:4000", "kv@@m", 0, "NoTopic=1"},
		"a rank that the pod has not":    {ranks, "10.0.0.1:4000", "kv@a@m", 0, "NoRank=1"},
		"two pods of one address, by it": {shared, "10.0.0.1:4000", "kv@10.0.0.1@m", 3, "NoRank=1"},
		"an address that is none":        {one, "nowhere", "kv@b@m", 0, "NoAddress=1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLobby(t, tc.endpoints...)
				defer l.manager.Close()
				c := l.call(tc.peer, tc.rank)
				c.say(tc.topic, 0, 1)
				got := l.held(1) // it waits
				if s := l.strangers(); s != "" {
					got += s
				}
				if got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
				if turnedAway := strings.Contains(tc.want, "="); c.gone() != turnedAway {
					t.Errorf("the connection is gone: %v, want %v", c.gone(), turnedAway)
				}
			})
		})
	}
}

func TestAPeerWithoutAPodIsNotAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLobby(t, dialer("a", "10.0.0.1:8000", 0, 0))
		for peer, want := range map[string]bool{"10.0.0.1:1": true, "10.0.0.2:1": false, "": false} {
			if got := l.reception.Allow(peer); got != want {
				t.Errorf("peer %q is allowed: %v, want %v", peer, got, want)
			}
		}
		if got := l.strangers(); got != "NoAddress=2" {
			t.Errorf("strangers %q", got)
		}
		l.manager.Close()
		if l.reception.Allow("10.0.0.1:1") {
			t.Error("a pod is allowed although no stream follows it any more")
		}
	})
}

func TestASilentPublisherIsConnectedWhereThereIsNoDoubtWhoItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := dialer("a", "10.0.0.1:8000", 0, 0), dialer("b", "10.0.0.2:8000", 0, 0), dialer("c", "10.0.0.2:8001", 0, 0)
		l := newLobby(t, a, b, c)
		defer l.manager.Close()
		l.call("10.0.0.1:1", 0)
		one := l.call("10.0.0.2:1", 0)
		connected := func() map[string]uint64 {
			synctest.Wait()
			all := map[string]uint64{}
			for _, s := range l.manager.Status("p") {
				all[s.Endpoint.ID.Pod] = s.Stats.Connections.Load()
			}
			return all
		}
		if diff := cmp.Diff(map[string]uint64{"a": 1, "b": 0, "c": 0}, connected()); diff != "" {
			t.Errorf("connections (-want +got):\n%s", diff)
		}
		one.say("kv@c@m", 0, 1)
		if diff := cmp.Diff(map[string]uint64{"a": 1, "b": 0, "c": 1}, connected()); diff != "" {
			t.Errorf("connections (-want +got):\n%s", diff)
		}
	})
}

func TestAPublisherThatChangesItsTopicIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLobby(t, dialer("a", "10.0.0.1:8000", 0, 0), dialer("b", "10.0.0.1:8001", 0, 0))
		defer l.manager.Close()
		c := l.call("10.0.0.1:1", 0)
		c.say("kv@a@m", 0, 1)
		c.say("kv@10.0.0.1:8000@m", 1, 2) // the same pod
		c.say("kv@b@m", 2, 3)
		if got := l.held(1) + l.held(2) + l.held(3); got != "a/0a/0" {
			t.Errorf("blocks are held by %s", got)
		}
		if !c.gone() || l.strangers() != "OtherPod=1" {
			t.Errorf("gone %v, strangers %q", c.gone(), l.strangers())
		}
	})
}

func TestTheLastPublisherOfAnEndpointCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLobby(t, dialer("a", "10.0.0.1:8000", 0, 0))
		defer l.manager.Close()
		first := l.call("10.0.0.1:1", 0)
		first.say("kv@a@m", 0, 1)
		synctest.Wait()
		second := l.call("10.0.0.1:2", 0)
		if !first.gone() || second.gone() {
			t.Fatalf("gone: the first %v, the second %v", first.gone(), second.gone())
		}
		second.say("kv@a@m", 0, 2)
		// The stream pauses before it connects again.
		for l.held(2) == "" {
			time.Sleep(time.Second) // virtual
		}
		if got := l.held(1); got != "" {
			t.Errorf("%s holds a block of the engine's former life", got)
		}
	})
}

func TestWhoWaitsInVainIsSentAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLobby(t, dialer("a", "10.0.0.1:8000", 0, 0), dialer("b", "10.0.0.1:8001", 0, 0))
		c := l.call("10.0.0.1:1", 0)
		c.say("kv@a@m", 0, 1)
		if l.held(1) != "a/0" {
			t.Fatal("not followed")
		}
		l.manager.Close()
		synctest.Wait()
		if !c.gone() {
			t.Error("the connection outlives the stream")
		}
		if err := l.reception.Subscribe(t.Context(), "nobody", nil, nil); !errors.Is(err, errUnexpected) {
			t.Errorf("error %v", err)
		}
	})
}
