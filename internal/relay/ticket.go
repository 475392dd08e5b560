// Package relay is what a picker and the sidecar of an engine that decodes tell each other in headers: the picker asks for a hand-off
// by a Ticket, and the sidecar answers with a Report.
package relay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kvasir-dev/kvasir/internal/kvblock"
)

const (
	// Lease is for how long blocks that an engine has prefilled for another one can be counted on: 5 s less than the lease that vLLM gives
	// its NixlConnector.
	Lease = 25 * time.Second
	// MaxPrefillAnswer bounds the answer to a first leg in bytes: the ids of a million tokens' blocks are half of it.
	MaxPrefillAnswer = 1 << 20
)

const (
	// TicketHeader is the request header with a Ticket, in lower case.
	TicketHeader = "x-kvasir-handoff"
	// MaxAge is how old a ticket can be, and maxAhead how far the clock of the picker can be ahead. A ticket travels with its request, which
	// gateways can send again for a while.
	MaxAge   = time.Minute
	maxAhead = 30 * time.Second

	version = "1"
	// maxTicket is longer than any ticket, bytes.
	maxTicket = 256
	// maxWithin bounds Ticket.Within.
	maxWithin = 24 * time.Hour
	macBytes  = 16
)

// Ticket names the endpoint that prefills a request. It is signed with the seed of the pool's keys, which pickers and the reporters of the
// pool's pods have and clients do not, so that nothing but an endpoint of the pool can be named:
//
//	1 ADDRESS SECONDS MILLISECONDS MAC
//
// SECONDS is the Unix time at which it was signed, MILLISECONDS is Within. The MAC, in base64url without padding, is the first half of an
// HMAC-SHA-256 of all before it.
type Ticket struct {
	// Address is ip:port.
	Address string
	// Within is how long the endpoint can take to prefill; 0 for no bound.
	Within time.Duration
}

// The faults of tickets.
var (
	ErrForm   = errors.New("the header is no ticket for a hand-off")
	ErrSigned = errors.New("the ticket for a hand-off is not signed by a picker of the pool")
	ErrAge    = errors.New("the ticket for a hand-off is not of now")
)

// Sign makes the header.
func (t *Ticket) Sign(seed kvblock.Seed, now time.Time) string {
	text := version + " " + t.Address + " " + strconv.FormatInt(now.Unix(), 10) + " " + strconv.FormatInt(t.Within.Milliseconds(), 10)
	return text + " " + mac(seed, text)
}

func mac(seed kvblock.Seed, text string) string {
	secret := seed.Secret()
	m := hmac.New(sha256.New, secret[:])
	m.Write([]byte("kvasir hand-off\x00"))
	m.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil)[:macBytes])
}

// Open reads a ticket that was signed with one of the seeds.
func Open(header string, now time.Time, seeds ...kvblock.Seed) (Ticket, error) {
	if len(header) > maxTicket {
		return Ticket{}, ErrForm
	}
	end := strings.LastIndexByte(header, ' ')
	if end < 0 {
		return Ticket{}, ErrForm
	}
	text, sum := header[:end], header[end+1:]
	signed := false
	for _, seed := range seeds {
		signed = hmac.Equal([]byte(mac(seed, text)), []byte(sum)) || signed
	}
	parts := strings.Split(text, " ")
	switch {
	case !signed:
		return Ticket{}, ErrSigned
	case len(parts) != 4 || parts[0] != version:
		return Ticket{}, ErrForm
	}
	address, err := netip.ParseAddrPort(parts[1])
	at, atErr := strconv.ParseInt(parts[2], 10, 64)
	within, withinErr := strconv.ParseInt(parts[3], 10, 64)
	switch {
	case err != nil || !address.IsValid() || atErr != nil || withinErr != nil || within < 0 || within > maxWithin.Milliseconds():
		return Ticket{}, ErrForm
	case now.Sub(time.Unix(at, 0)) > MaxAge+time.Second || time.Unix(at, 0).Sub(now) > maxAhead:
		return Ticket{}, ErrAge
	}
	return Ticket{Address: parts[1], Within: time.Duration(within) * time.Millisecond}, nil
}
