package chattemplate

import (
	"errors"
	"fmt"
)

var (
	// ErrUnsupported is wrapped by errors about templates and values that might be right but ask for what is not known
	// here, or for what differs between releases of Python and Jinja.
	ErrUnsupported = errors.New("unsupported by the template renderer")
	// ErrLimit is wrapped by errors about templates and renders that are larger than is allowed.
	ErrLimit = errors.New("limit of the template renderer exceeded")
)

// SyntaxError reports why a source is no template. The engine refuses it too.
type SyntaxError struct {
	// Line of the source, from 1.
	Line int
	// Msg describes the error.
	Msg string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("template line %d: %s", e.Line, e.Msg) }

// RaisedError is an exception that the template raises for these values: the engine refuses the request.
type RaisedError struct {
	// Class is the name of the exception in Python: TemplateError for raise_exception, UndefinedError, TypeError, and
	// so on.
	Class string
	// Msg is the exception's text. It might quote the request: for the client, not for logs.
	Msg string
}

func (e *RaisedError) Error() string { return e.Class + ": " + e.Msg }

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}
