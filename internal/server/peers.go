package server

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/metrics"
	"github.com/kvasir-dev/kvasir/internal/replicas"
	"github.com/kvasir-dev/kvasir/internal/rpc"
)

// peerOptions are the flags about other replicas.
type peerOptions struct {
	service, list string
	name, ca      string
	secretFile    string
	addresses     []string // of the list
}

func (o *peerOptions) flags(f *flag.FlagSet) {
	f.StringVar(&o.service, "peers-service", "", "`host:port` that resolves to all replicas, such as that of a headless Service; the picker sends them its counters")
	f.StringVar(&o.list, "peers", "", "comma-separated `list` of host:port of the replicas, instead; it can include the picker's own")
	f.StringVar(&o.name, "peers-name", "", "DNS `name` in the certificates of all replicas")
	f.StringVar(&o.ca, "peers-ca", "", "`file` with the CA of the certificates of replicas; the picker presents --report-cert to them")
	f.StringVar(&o.secretFile, "peers-secret-file", "", "`file` with a secret of at least 16 bytes that replicas send each other, in place of client certificates")
}

// wanted reports whether there can be other replicas.
func (o *peerOptions) wanted() bool { return o.service != "" || o.list != "" }

func (o *peerOptions) check(r *reportOptions) error {
	for _, addr := range strings.Split(o.list, ",") {
		if addr = strings.TrimSpace(addr); addr == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("--peers: %w", err)
		}
		o.addresses = append(o.addresses, addr)
	}
	more := o.name != "" || o.ca != "" || o.secretFile != ""
	switch {
	case o.service != "" && o.list != "":
		return errors.New("--peers-service and --peers exclude each other")
	case !o.wanted() && more:
		return errors.New("--peers-name, --peers-ca and --peers-secret-file need --peers-service or --peers")
	case !o.wanted():
		return nil
	case len(o.addresses) > replicas.MaxPeers+1:
		return fmt.Errorf("--peers: at most %d replicas", replicas.MaxPeers+1)
	case r.address == "":
		return errors.New("peers need --report-address")
	case r.insecure && (o.name != "" || o.ca != ""):
		return errors.New("--report-insecure excludes --peers-name and --peers-ca")
	case !r.insecure && (r.tls.Cert == "" || r.tls.Key == "" || o.name == "" || o.ca == ""):
		return errors.New("peers need --report-cert, --report-key, --peers-name and --peers-ca, or --report-insecure")
	case r.tls.CA != "" && r.tls.CA != o.ca:
		return errors.New("--report-client-ca and --peers-ca must be the same file: one listener asks for the certificates of both")
	}
	return nil
}

// peers is what connects the picker with other replicas.
type peers struct {
	outbox  *replicas.Outbox
	inbox   *replicas.Inbox  // nil without peers, like the others
	service *rpc.PeerService // receives their updates
	mesh    *rpc.Mesh        // sends them updates
	// recollection is what they remember, began when the picker has begun to ask.
	recollection *rpc.Recollection
	began        time.Time
}

// incarnation is a life of the picker.
func incarnation() uint64 { return rand.Uint64() | 1 }

// newPeers makes the receiver of other replicas' updates and the sender to them.
func (a *app) newPeers(r *reportOptions, o *peerOptions) (*rpc.PeerService, error) {
	log := a.log.WithName("peers")
	p := &a.peers
	find := rpc.List(o.addresses...)
	if o.service != "" {
		var err error
		if find, err = rpc.Lookup(net.DefaultResolver, o.service); err != nil {
			return nil, err
		}
	}
	var auth rpc.Authenticator = rpc.Anybody{}
	var dial rpc.DialOptions
	if !r.insecure {
		auth = rpc.PeerName(o.name)
		var err error
		files := rpc.Files{Cert: r.tls.Cert, Key: r.tls.Key, CA: o.ca}
		if dial.Credentials, err = rpc.ClientTLS(files, o.name); err != nil {
			return nil, err
		}
	}
	if o.secretFile != "" {
		read := rpc.SecretFile(o.secretFile)
		if _, err := read(); err != nil {
			return nil, err
		}
		auth, dial.Token, dial.TokenInClear = rpc.SharedSecret{Read: read}, read, r.insecure
	}
	p.inbox = replicas.NewInbox(a.picker, p.outbox.Incarnation())
	p.inbox.Limit(a.plan.peers)
	p.inbox.Meter(a.picker)
	p.inbox.UpdatePlaceOf(p.outbox)
	p.mesh = rpc.NewMesh(rpc.MeshOptions{
		Find: find, Dial: dial, Outbox: p.outbox, Loads: a.picker.Loads, Meters: a.picker.Meters, Homes: a.picker.Homes, Inbox: p.inbox, Log: log,
		Borrow: func(ctx context.Context, c *rpc.Client) {
			if a.reports != nil {
				a.reports.Borrow(ctx, c)
			}
		},
		Recall: a.recall,
	})
	p.recollection, p.began = rpc.NewRecollection(a.picker.Recalled), time.Now()
	p.service = &rpc.PeerService{
		Auth: auth, Inbox: p.inbox, Incarnation: p.outbox.Incarnation(), OnPeer: p.mesh.Look, Log: log,
		Ready: a.informed, Remembered: a.picker.Remembered, Complete: p.complete,
	}
	return p.service, nil
}

// publishToPeers sends updates to other replicas until ctx ends.
func (a *app) publishToPeers(ctx context.Context) {
	if a.peers.mesh != nil {
		a.peers.mesh.Run(ctx)
	}
}

// completeAfter is how long a picker runs until it has seen as much as those that it could not ask.
const completeAfter = 10 * time.Second

// complete reports whether no other picker remembers more than this one.
func (p *peers) complete() bool {
	return p.recollection.Complete() || time.Since(p.began) > completeAfter
}

// recall copies what a peer remembers, when the pools are known.
func (a *app) recall(ctx context.Context, c *rpc.Client) {
	select {
	case <-a.informed:
	case <-ctx.Done():
		return
	}
	if err := a.peers.recollection.From(ctx, c); err != nil && ctx.Err() == nil {
		a.log.Info("Copying what a peer remembers failed", "reason", err.Error())
	}
}

// peersHeard reports whether all replicas that could be reached have sent updates, and what they remember.
func (a *app) peersHeard() bool {
	p := &a.peers
	if p.mesh == nil {
		return true
	}
	sent := p.mesh.Stats()
	return sent.Tried && p.inbox.Stats(time.Now()).Fresh >= sent.Connected && p.recollection.Settled(sent.Connected)
}

// peerStats are the exchange's counters; nil without peers.
func (a *app) peerStats() *metrics.Peers {
	p := &a.peers
	if p.mesh == nil {
		return nil
	}
	out := &metrics.Peers{Sent: p.mesh.Stats(), Received: p.inbox.Stats(time.Now())}
	out.ReceivedBytes, out.Refused = p.service.Received()
	out.Panics = p.service.Panics()
	if a.reports != nil {
		out.Panics += a.reports.BorrowPanics()
	}
	return out
}
