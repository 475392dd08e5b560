package h2stream

import (
	"time"

	"golang.org/x/net/http2"
)

// take takes a frame.
func (c *connection) take(f http2.Frame) error {
	if err := c.pay(costOf(f)); err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		return c.takeData(f)
	case *http2.MetaHeadersFrame:
		return c.takeHeaders(f)
	case *http2.RSTStreamFrame:
		return c.takeReset(f)
	case *http2.WindowUpdateFrame:
		return c.takeWindow(f)
	case *http2.SettingsFrame:
		return c.takeSettings(f)
	case *http2.PingFrame:
		return c.takePing(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // priority, and unknown types. A client's GOAWAY only announces that it opens no more.
}

// pay takes what a frame costs off the client's credit.
func (c *connection) pay(cost int) error {
	if cost < 0 {
		c.credit.earn(-cost)
		return nil
	}
	if c.credit.left < maxCredit/2 { // seldom
		c.mu.Lock()
		c.credit.earn(creditPerData * c.sentData)
		c.sentData = 0
		c.mu.Unlock()
	}
	return c.credit.spend(cost)
}

func (c *connection) takeData(f *http2.DataFrame) error {
	size := int(f.Length) // with padding
	if c.unsaid += size; c.unsaid > connectionWindow {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	c.mu.Lock()
	if c.unsaid >= connectionWindow/4 {
		c.plain = appendWindowUpdate(c.plain, 0, c.unsaid)
		c.unsaid = 0
	}
	s := c.streams[f.StreamID]
	c.mu.Unlock()
	switch {
	case s == nil && f.StreamID > c.newest:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil: // it is over, and the client did not know
		if len(f.Data()) < lateData {
			return c.pay(creditPerData + lateCost) // it has earned nothing
		}
		return nil
	}
	return s.receive(f.Data(), size, f.StreamEnded())
}

func (c *connection) takeHeaders(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	c.mu.Lock()
	s := c.streams[id]
	closed := s != nil && s.halfClosed
	refused := c.leaving == gone && id > c.last || s == nil && len(c.streams) >= c.server.options.MaxStreams
	flood := s == nil && c.unended >= 2*c.server.options.MaxStreams
	c.mu.Unlock()
	switch {
	case closed:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	case s != nil: // trailers
		if !f.StreamEnded() || len(f.PseudoFields()) > 0 {
			return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
		}
		return s.receive(nil, 0, true)
	case id%2 == 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case id <= c.newest: // trailers of a stream that is over, which the client did not know
		return c.pay(lateCost)
	}
	c.opened(id)
	if flood { // it resets streams faster than what they asked for ends
		return errFlood
	}
	if refused {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	if f.Truncated {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeEnhanceYourCalm}
	}
	call := callOf(f)
	if !call.wellFormed() {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	c.server.streams.Add(1)
	s = newStream(c, id)
	s.announced = call.length()
	c.mu.Lock()
	s.sendWindow = c.peerWindow
	c.streams[id] = s
	if len(c.streams) == 1 {
		c.work(true)
	}
	c.unended++
	c.mu.Unlock()
	s.start(call)
	if f.StreamEnded() {
		return s.receive(nil, 0, true)
	}
	return nil
}

// opened notes that a client has used the number of a stream.
func (c *connection) opened(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = max(c.newest, id)
}

func (c *connection) takeReset(f *http2.RSTStreamFrame) error {
	if f.StreamID > c.newest {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	defer c.unlock()
	s := c.streams[f.StreamID]
	if s == nil {
		return nil
	}
	premature := !s.headed && time.Since(s.opened) < prematureLife
	s.over(c)
	if premature && c.resetLife() {
		return errFlood
	}
	return nil
}

func (c *connection) takeWindow(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	more := int64(f.Increment)
	if f.StreamID == 0 {
		if c.sendWindow += more; c.sendWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		return nil
	}
	s := c.streams[f.StreamID]
	if s == nil {
		if f.StreamID > c.newest {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil
	}
	if s.sendWindow += more; s.sendWindow > maxWindow {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	s.stir()
	return nil
}

func (c *connection) takeSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.HasDuplicates() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := f.ForeachSetting(func(o http2.Setting) error {
		if err := o.Valid(); err != nil {
			return err
		}
		switch o.ID {
		case http2.SettingMaxFrameSize:
			c.peerFrame = min(int(o.Val), maxFrame)
		case http2.SettingHeaderTableSize:
			c.resized = true
		case http2.SettingInitialWindowSize:
			more := int64(o.Val) - c.peerWindow
			if more == 0 {
				return nil
			}
			if err := c.credit.spend(len(c.streams) / walkShare); err != nil {
				return err
			}
			c.peerWindow = int64(o.Val)
			for _, s := range c.streams {
				if s.sendWindow += more; s.sendWindow > maxWindow {
					return http2.ConnectionError(http2.ErrCodeFlowControl)
				}
				s.stir()
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.plain = append(c.plain, settingsAck...)
	return nil
}

func (c *connection) takePing(f *http2.PingFrame) error {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case !f.IsAck():
		c.plain = appendPing(c.plain, true, f.Data)
	case f.Data == goAwayPing && c.leaving == goAwaySent:
		c.refuse()
	}
	return nil
}

// owes fails when too much waits for a client that asks and does not read.
func (c *connection) owes() error {
	if !c.owesMuch() {
		return nil
	}
	c.flush() // it was not tried while there was more to read
	if c.owesMuch() {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

func (c *connection) owesMuch() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		c.plain = nil
	}
	return len(c.plain) > maxOwed
}
