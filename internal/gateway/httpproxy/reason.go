package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/kvasir-dev/kvasir/internal/openai"
)

// statusError is an answer with a status that is a failure.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

// reasonOf returns why an attempt has failed, in words that never contain a byte of the engine's answer: the errors of
// net/http quote what they cannot parse, and an engine's answer contains text of its users.
func reasonOf(err error) string {
	var status statusError
	var network *net.OpError // addresses, and the system's error
	var timeout net.Error
	switch {
	case errors.As(err, &status):
		return status.Error()
	case errors.Is(err, errFirstByte), errors.Is(err, errGaveUp), errors.Is(err, errFull), errors.Is(err, errEvent),
		errors.Is(err, errStalled), errors.Is(err, errPrefill), errors.Is(err, errOverdue), errors.Is(err, errAborted),
		errors.Is(err, openai.ErrContinue):
		return err.Error()
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
