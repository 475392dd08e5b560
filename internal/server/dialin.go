package server

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/budget"
	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/events"
	"github.com/kvasir-dev/kvasir/internal/zmtp"
)

// listenPause is how long a port that could not be bound is left alone.
const listenPause = 5 * time.Second

// mostOfHost is how many publishers of one address can be connected to a port, and messageTimeout how long a message of theirs can take.
// The pods of a node with hostNetwork share an address, and a GPU serves one rank of one of them at a time.
const mostOfHost, messageTimeout = 64, 30 * time.Second

// dialIn listens for the event publishers that connect to the picker: those of global rank r at the port + r, as
// engines dial, and only while there are endpoints of that rank.
type dialIn struct {
	address   string
	host      string
	port      int
	reception *events.Reception
	room      *budget.Room // for what publishers send
	log       logr.Logger

	mu     sync.Mutex
	ended  bool                  // guarded by mu
	open   map[int]*rankListener // guarded by mu; by global rank
	failed map[int]error         // guarded by mu; why a rank's port could not be bound
}

// rankListener is one port, bound as soon as it can be.
type rankListener struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup
}

func newDialIn(address string, room *budget.Room, log logr.Logger) *dialIn {
	host, port, _ := splitAddress(address) // the flag's check has passed
	return &dialIn{
		address: address, host: host, port: port, reception: events.NewReception(log), room: room, log: log,
		open: map[int]*rankListener{}, failed: map[int]error{},
	}
}

// splitAddress takes host:port apart; the port is a number.
func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port of %q: %w", address, err)
	}
	return host, int(n), nil
}

// set listens for the publishers of these ranks, and only them.
func (d *dialIn) set(ranks map[int]bool) {
	d.mu.Lock()
	if d.ended {
		ranks = nil
	}
	var gone []*rankListener
	for rank, l := range d.open {
		if !ranks[rank] {
			gone = append(gone, l)
			delete(d.open, rank)
		}
	}
	for rank := range ranks {
		if d.open[rank] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		l := &rankListener{cancel: cancel}
		d.open[rank] = l
		l.workers.Go(func() { d.listen(ctx, l, rank) })
	}
	d.mu.Unlock()
	for _, l := range gone {
		l.cancel()
	}
	for _, l := range gone {
		l.workers.Wait()
	}
}

// close ends all connections, for good. A picker that drains does so at once: the engines' next connection is to the picker that
// replaces it.
func (d *dialIn) close() {
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
	d.set(nil)
}

// listen binds the port of a rank, trying again until it can, and takes publishers until ctx ends.
func (d *dialIn) listen(ctx context.Context, l *rankListener, rank int) {
	port := d.port
	if port != 0 {
		port += rank
	}
	config := zmtp.Config{Allow: d.reception.Allow, Full: d.reception.Full, Topic: d.reception.Names, Room: d.room,
		MaxPeersOfHost: mostOfHost, MessageTimeout: messageTimeout}
	for {
		listener, err := config.ListenSub(net.JoinHostPort(d.host, strconv.Itoa(port)))
		d.settled(rank, listener, err)
		if err == nil {
			stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
			d.accept(l, listener, rank)
			stop()
			_ = listener.Close() // it is closed already
			d.settled(rank, nil, nil)
			return
		}
		select {
		case <-ctx.Done():
			d.settled(rank, nil, nil)
			return
		case <-time.After(listenPause):
		}
	}
}

func (d *dialIn) accept(l *rankListener, listener *zmtp.SubListener, rank int) {
	for {
		sub, err := listener.Accept()
		if err != nil {
			return
		}
		l.workers.Go(func() { d.reception.Take(sub, rank) })
	}
}

// settled records the result of binding a rank's port: neither listener nor error once the port is not needed any more.
func (d *dialIn) settled(rank int, listener *zmtp.SubListener, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.failed[rank]
	delete(d.failed, rank)
	switch {
	case err != nil:
		d.failed[rank] = err
		if before == nil {
			d.log.Error(err, "Listening for event publishers failed", "rank", rank)
		}
	case listener != nil:
		d.log.Info("Listening for event publishers", "address", listener.Addr(), "rank", rank)
	}
}

func (d *dialIn) status() config.DialIn {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := config.DialIn{Address: d.address, Strangers: d.reception.Strangers()}
	for _, err := range d.failed {
		s.Err = err
	}
	return s
}
