package zmtp

// SubListener waits for publishers that dial.
type SubListener struct {
	l      *listener
	topics []string
	ready  chan *Sub
}

// ListenSub is Config.ListenSub with all defaults.
func ListenSub(addr string, topics ...string) (*SubListener, error) {
	return Config{}.ListenSub(addr, topics...)
}

// ListenSub binds addr (host:port, port 0 for any) and subscribes to the topics at every publisher that connects, to
// everything if there are none. Each publisher is its own Sub, with its own buffers, so that one does not hold up
// another; at most Config.MaxPeers are connected.
func (c Config) ListenSub(addr string, topics ...string) (*SubListener, error) {
	l, err := c.listen(addr)
	if err != nil {
		return nil, err
	}
	s := &SubListener{l: l, topics: topics, ready: make(chan *Sub)}
	l.start(typeSub, s.serve)
	return s, nil
}

// Addr is the bound address, host:port.
func (s *SubListener) Addr() string { return s.l.addr() }

// Accept waits for the next publisher. Sub.Peer identifies it. After Close the error is ErrClosed.
func (s *SubListener) Accept() (*Sub, error) {
	select {
	case sub := <-s.ready:
		return sub, nil
	case <-s.l.serving.Done():
		return nil, ErrClosed
	}
}

// Close ends the listener and every Sub that it accepted. It can be called often and from any goroutine.
func (s *SubListener) Close() error {
	s.l.close()
	return nil
}

func (s *SubListener) serve(k *conn) {
	sub, err := newSub(k, s.topics)
	if err != nil {
		return
	}
	select {
	case s.ready <- sub:
		<-k.done
	case <-k.done:
	}
}
