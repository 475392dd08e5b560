package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
)

// statusError is an answer with a status that is a failure.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

// reasonOf says why an attempt has failed, in words that never have a byte of the engine's: the errors of net/http
// quote what they cannot read, and an engine answers with what its users have written.
func reasonOf(err error) string {
	var status statusError
	var network *net.OpError // addresses, and what the system says
	var timeout net.Error
	switch {
	case errors.As(err, &status):
		return status.Error()
	case errors.Is(err, errFirstByte):
		return errFirstByte.Error()
	case errors.As(err, &network):
		return network.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "time-out"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection ended early"
	case errors.Is(err, context.Canceled), errors.Is(err, errOver):
		return "given up"
	}
	return "no answer that can be read as HTTP"
}
