package reporter

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"github.com/kvasir-dev/kvasir/internal/cachesync"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
)

// Config of a Reporter. Zero values take the defaults.
type Config struct {
	// Pod is the pod's UID, or namespace/name; required.
	Pod string
	// Engine is VLLM or SGLang.
	Engine string
	// FirstRank and Ranks are the data-parallel ranks of the engine in this pod: the engine's numbers, which are
	// added to the ports. To pickers they are 0, 1 and so on.
	FirstRank, Ranks int
	// Listen is host:port where the engine's publisher of rank 0 connects, Subscribe where it listens: one of them.
	Listen, Subscribe string
	// Replay is host:port of the replay socket of rank 0; empty for none.
	Replay string
	// StateDir is where mirrors are saved; empty for nowhere.
	StateDir string
	// SaveEvery is how often.
	SaveEvery time.Duration
	// Model has the model's files, which pickers might want; it names nothing for none. OfferEvery is how often they are offered.
	Model      modelfiles.Source
	OfferEvery time.Duration

	// Pickers finds the addresses of all replicas; required.
	Pickers rpc.Finder
	// FindEvery is how often.
	FindEvery time.Duration
	Dial      rpc.DialOptions
	// MinBackoff and MaxBackoff bound the pause before a picker is tried again. It doubles, and half of it is random.
	MinBackoff, MaxBackoff time.Duration

	// MinQuiet and MaxQuiet are events.Config's.
	MinQuiet, MaxQuiet time.Duration

	Mirror cachesync.Options
	Log    logr.Logger
}

// Defaults of Config. A restarted picker or a new replica must know nearly everything within five seconds, and needs most
// of that time to receive it: so the search for pickers is frequent.
const (
	DefaultSaveEvery  = 5 * time.Second
	DefaultFindEvery  = 2 * time.Second
	DefaultOfferEvery = 15 * time.Second
	DefaultMinBackoff = 100 * time.Millisecond
	DefaultMaxBackoff = time.Second
	DefaultMinQuiet   = time.Second
	DefaultMaxQuiet   = 4 * time.Second
	maxRanks          = 64
)

func (c Config) withDefaults() (Config, error) {
	span := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	span(&c.SaveEvery, DefaultSaveEvery)
	span(&c.FindEvery, DefaultFindEvery)
	span(&c.OfferEvery, DefaultOfferEvery)
	span(&c.MinBackoff, DefaultMinBackoff)
	span(&c.MaxBackoff, DefaultMaxBackoff)
	span(&c.MinQuiet, DefaultMinQuiet)
	span(&c.MaxQuiet, DefaultMaxQuiet)
	if c.Engine == "" {
		c.Engine = "VLLM"
	}
	if c.Ranks == 0 {
		c.Ranks = 1
	}
	switch {
	case c.Pod == "":
		return c, errors.New("the pod's identity is missing")
	case c.Engine != "VLLM" && c.Engine != "SGLang":
		return c, fmt.Errorf("engine %q is neither VLLM nor SGLang", c.Engine)
	case c.Ranks < 0 || c.Ranks > maxRanks || c.FirstRank < 0:
		return c, fmt.Errorf("%d ranks from %d: at most %d can be mirrored", c.Ranks, c.FirstRank, maxRanks)
	case (c.Listen == "") == (c.Subscribe == ""):
		return c, errors.New("either listen for the engine's publisher, or subscribe to it")
	case c.Pickers == nil:
		return c, errors.New("there is no way to find pickers")
	}
	for _, addr := range []string{c.Listen, c.Subscribe, c.Replay} {
		if _, err := shift(addr, 0); addr != "" && err != nil {
			return c, err
		}
	}
	return c, nil
}

// shift adds an engine's rank to the port of an address. Port 0 stays.
func shift(addr string, rank int) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("address %q: %w", addr, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("address %q: %w", addr, err)
	}
	if n == 0 {
		return addr, nil
	}
	if n += uint64(rank); n > 1<<16-1 {
		return "", fmt.Errorf("address %q: there is no port %d", addr, n)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}
