// Package relay is what a picker and the sidecar of an engine that decodes tell each other in headers: the picker asks for a hand-off
// by a Ticket, and the sidecar answers with a Report.
package relay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/netip"
	"slices"
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

	// Kept is for how long a sidecar must know a ticket that it has taken, in order to take none twice.
	Kept = MaxAge + maxAhead + 2*time.Second

	version = "2"
	// maxTicket is longer than any ticket, bytes.
	maxTicket = 512
	// maxWithin bounds Ticket.Within.
	maxWithin = 24 * time.Hour
	macBytes  = 16
	tagBytes  = 8
)

// Ticket names the endpoint that prefills a request. It is signed with the seed of the pool's keys, which pickers and the reporters of the
// pool's pods have and clients do not, so that nothing but an endpoint of the pool can be named:
//
//	2 ADDRESS PODS SECONDS MILLISECONDS ID MAC,MAC
//
// PODS are joined by commas. SECONDS is the Unix time at which it was signed, MILLISECONDS is Within, and ID is in the base 36. Each MAC,
// in base64url without padding, is the first half of an HMAC-SHA-256 of all before them. There is one for each root of keys that a pod of
// the pool can have while the root is rotated.
type Ticket struct {
	// Address is ip:port.
	Address string
	// Pods are the TagOf of those that can take it: each is one to which the request can be sent.
	Pods []string
	// Within is how long the endpoint can take to prefill; 0 for no bound.
	Within time.Duration
	// ID differs between all tickets that are good at the same time, so that a pod takes none twice.
	ID uint64
}

// The faults of tickets.
var (
	ErrForm   = errors.New("the header is no ticket for a hand-off")
	ErrSigned = errors.New("the ticket for a hand-off is not signed by a picker of the pool")
	ErrAge    = errors.New("the ticket for a hand-off is not of now")
	ErrPod    = errors.New("the ticket for a hand-off is for another pod")
)

// TagOf stands for a pod in tickets: a hash of its UID, in base64url without padding.
func TagOf(pod string) string {
	sum := sha256.Sum256([]byte("kvasir pod\x00" + pod))
	return base64.RawURLEncoding.EncodeToString(sum[:tagBytes])
}

// Sign makes the header, with a MAC for each of the seeds.
func (t *Ticket) Sign(now time.Time, seeds ...kvblock.Seed) string {
	text := strings.Join([]string{
		version, t.Address, strings.Join(t.Pods, ","), strconv.FormatInt(now.Unix(), 10), strconv.FormatInt(t.Within.Milliseconds(), 10),
		strconv.FormatUint(t.ID, 36),
	}, " ")
	macs := make([]string, len(seeds))
	for i, seed := range seeds {
		macs[i] = mac(seed, text)
	}
	return text + " " + strings.Join(macs, ",")
}

func mac(seed kvblock.Seed, text string) string {
	secret := seed.Secret()
	m := hmac.New(sha256.New, secret[:])
	m.Write([]byte("kvasir hand-off\x00"))
	m.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil)[:macBytes])
}

// Open reads a ticket that was signed with one of the seeds, for a pod with a tag among others.
func Open(header, tag string, now time.Time, seeds ...kvblock.Seed) (Ticket, error) {
	if len(header) > maxTicket {
		return Ticket{}, ErrForm
	}
	end := strings.LastIndexByte(header, ' ')
	if end < 0 {
		return Ticket{}, ErrForm
	}
	text, macs := header[:end], header[end+1:]
	if !signedBy(text, macs, seeds) {
		return Ticket{}, ErrSigned
	}
	t, at, ok := read(text)
	switch {
	case !ok:
		return Ticket{}, ErrForm
	case now.Sub(at) > MaxAge+time.Second || at.Sub(now) > maxAhead:
		return Ticket{}, ErrAge
	case !slices.Contains(t.Pods, tag):
		return Ticket{}, ErrPod
	}
	return t, nil
}

// signedBy reports whether one of a text's MACs is that of one of the seeds.
func signedBy(text, macs string, seeds []kvblock.Seed) (signed bool) {
	for _, seed := range seeds {
		want := mac(seed, text)
		for one := range strings.SplitSeq(macs, ",") {
			signed = hmac.Equal([]byte(want), []byte(one)) || signed
		}
	}
	return signed
}

// read reads what is signed.
func read(text string) (t Ticket, at time.Time, ok bool) {
	parts := strings.Split(text, " ")
	if len(parts) != 6 || parts[0] != version {
		return t, at, false
	}
	address, err := netip.ParseAddrPort(parts[1])
	seconds, atErr := strconv.ParseInt(parts[3], 10, 64)
	within, withinErr := strconv.ParseInt(parts[4], 10, 64)
	id, idErr := strconv.ParseUint(parts[5], 36, 64)
	if err != nil || !address.IsValid() || atErr != nil || withinErr != nil || idErr != nil ||
		within < 0 || within > maxWithin.Milliseconds() {
		return t, at, false
	}
	t = Ticket{Address: parts[1], Pods: strings.Split(parts[2], ","), Within: time.Duration(within) * time.Millisecond, ID: id}
	return t, time.Unix(seconds, 0), true
}
