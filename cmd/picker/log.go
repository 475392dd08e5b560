package main

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
)

// newLog writes lines of the given format.
func newLog(w io.Writer, level slog.Level, format string) logr.Logger {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: levelName}
	var handler slog.Handler = slog.NewTextHandler(w, o)
	if format == "json" {
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
