package zmtp

import (
	"context"
	"time"
)

// Dealer sends requests to, and receives answers from, one router.
type Dealer struct {
	conn *conn
}

// DialDealer is Config.DialDealer with all defaults.
func DialDealer(ctx context.Context, addr string) (*Dealer, error) {
	return Config{}.DialDealer(ctx, addr)
}

// DialDealer connects to the router at addr (host:port). ctx bounds the life of the socket.
func (c Config) DialDealer(ctx context.Context, addr string) (*Dealer, error) {
	k, err := c.dial(ctx, addr, typeDealer)
	if err != nil {
		return nil, err
	}
	return &Dealer{conn: k}, nil
}

// Send sends one message. Its frames are no longer used when it returns.
func (d *Dealer) Send(frames ...[]byte) error { return d.conn.send(frames) }

// SetRecvDeadline bounds the following calls of Recv; the zero time lifts the bound.
func (d *Dealer) SetRecvDeadline(t time.Time) error { return d.conn.nc.SetReadDeadline(t) }

// Recv waits for the next message, whose frames are valid until the next Recv. After an error, also that of a passed
// deadline (os.ErrDeadlineExceeded), the socket is closed. Only one goroutine can receive.
func (d *Dealer) Recv() (Message, error) { return d.conn.recv() }

// Close ends the connection and a Recv that waits. It can be called often and from any goroutine.
func (d *Dealer) Close() error {
	d.conn.close()
	return nil
}
