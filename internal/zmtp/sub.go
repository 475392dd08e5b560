package zmtp

import "context"

// Sub receives from one publisher.
type Sub struct {
	conn *conn
}

// DialSub is Config.DialSub with all defaults.
func DialSub(ctx context.Context, addr string, topics ...string) (*Sub, error) {
	return Config{}.DialSub(ctx, addr, topics...)
}

// DialSub connects to the publisher at addr (host:port) and subscribes to the topics, which are prefixes; none
// subscribes to everything. ctx bounds the life of the socket.
func (c Config) DialSub(ctx context.Context, addr string, topics ...string) (*Sub, error) {
	k, err := c.dial(ctx, addr, typeSub)
	if err != nil {
		return nil, err
	}
	return newSub(k, topics)
}

func newSub(k *conn, topics []string) (*Sub, error) {
	if len(topics) == 0 {
		topics = []string{""}
	}
	for _, t := range topics {
		if err := k.subscribe(t); err != nil {
			k.close()
			return nil, err
		}
	}
	k.beat()
	return &Sub{conn: k}, nil
}

// Recv waits for the next message, whose frames are valid until the next Recv. After an error the socket is closed: io.EOF
// means that the publisher closed the connection, ErrSilent that it seems dead, ErrMalformed and ErrLimit that it sent
// unacceptable data. Only one goroutine can receive.
func (s *Sub) Recv() (Message, error) { return s.conn.recv() }

// Peer is the publisher's address, host:port.
func (s *Sub) Peer() string { return s.conn.peer }

// Close ends the connection and a Recv that waits. It can be called often and from any goroutine.
func (s *Sub) Close() error {
	s.conn.close()
	return nil
}
