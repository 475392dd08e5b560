// Package logging makes the logs of the programs: one line for each message, as text or JSON.
package logging

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
)

// Levels by the name of a flag's value. The numbers are logr's, negated: debug is V(1), trace V(2).
var Levels = map[string]slog.Level{"error": slog.LevelError, "warn": slog.LevelWarn, "info": slog.LevelInfo, "debug": -1, "trace": -2}

// The formats.
const (
	Text = "text"
	JSON = "json"
)

// New writes lines of a format, of a level and above.
func New(w io.Writer, level slog.Level, format string) logr.Logger {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: levelName}
	var handler slog.Handler = slog.NewTextHandler(w, o)
	if format == JSON {
		handler = slog.NewJSONHandler(w, o)
	}
	return logr.FromSlogHandler(handler)
}

// levelName writes logr's levels as the flag's values.
func levelName(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 || a.Key != slog.LevelKey {
		return a
	}
	level, ok := a.Value.Any().(slog.Level)
	switch {
	case !ok:
	case level >= slog.LevelError:
		a.Value = slog.StringValue("ERROR")
	case level >= slog.LevelInfo:
		a.Value = slog.StringValue("INFO")
	case level == -1:
		a.Value = slog.StringValue("DEBUG")
	default:
		a.Value = slog.StringValue("TRACE")
	}
	return a
}
