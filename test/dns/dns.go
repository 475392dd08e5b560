// Package dns is a name service for tests, which can fail as real ones do.
package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Fault is what is wrong with the service.
type Fault int

// The faults.
const (
	// None: it answers. A name that it does not know does not exist.
	None Fault = iota
	// Silent: it never answers.
	Silent
	// Failing: it answers each question with SERVFAIL, as a forwarder without an upstream does.
	Failing
	// Empty: it answers that names exist and have no address.
	Empty
	// FailingIPv4 and FailingIPv6: it answers questions for addresses of one kind with SERVFAIL.
	FailingIPv4
	FailingIPv6
	// Garbage: its answers cannot be read.
	Garbage
)

// Service is a name service on the loopback interface. It is safe for concurrent use.
type Service struct {
	socket net.PacketConn

	mu    sync.Mutex // guards what follows
	names map[string][]netip.Addr
	fault Fault
	asked int
}

// New starts a service, which ends with the test.
func New(t testing.TB) *Service {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{socket: socket, names: map[string][]netip.Addr{}}
	var serving sync.WaitGroup
	serving.Go(s.serve)
	t.Cleanup(func() { _ = socket.Close(); serving.Wait() })
	return s
}

// Resolver asks the service, whatever this machine's configuration says.
func (s *Service) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.socket.LocalAddr().String())
	}}
}

// Set sets the addresses of a name, which ends with a dot.
func (s *Service) Set(name string, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[name] = nil
	for _, text := range addresses {
		s.names[name] = append(s.names[name], netip.MustParseAddr(text))
	}
}

// Break makes the service have a fault from now on.
func (s *Service) Break(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Asked is how many questions have come.
func (s *Service) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *Service) serve() {
	buffer := make([]byte, 4<<10)
	for {
		n, from, err := s.socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		if answer := s.answer(buffer[:n]); answer != nil {
			_, _ = s.socket.WriteTo(answer, from)
		}
	}
}

// answer makes the answer to a question; nil for none.
func (s *Service) answer(question []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	q := m.Questions[0]
	addresses, known := s.names[strings.ToLower(q.Name.String())]
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	switch {
	case s.fault == Silent:
		return nil
	case s.fault == Garbage:
		return append(question[:2:2], "no answer"...)
	case s.fault == Failing, s.fault == FailingIPv4 && q.Type == dnsmessage.TypeA, s.fault == FailingIPv6 && q.Type == dnsmessage.TypeAAAA:
		out.RCode = dnsmessage.RCodeServerFailure
	case s.fault == Empty:
	case !known:
		out.RCode = dnsmessage.RCodeNameError
	default:
		out.Answers = records(q, addresses)
	}
	packed, err := out.Pack()
	if err != nil {
		panic(err)
	}
	return packed
}

// records are the addresses of the kind that was asked for.
func records(q dnsmessage.Question, addresses []netip.Addr) (all []dnsmessage.Resource) {
	for _, ip := range addresses {
		header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
		switch {
		case q.Type == dnsmessage.TypeA && ip.Is4():
			all = append(all, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: ip.As4()}})
		case q.Type == dnsmessage.TypeAAAA && ip.Is6():
			all = append(all, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}})
		}
	}
	return all
}
