// Package logging makes the logs of the programs: one line for each message, as text or JSON.
package logging

import (
	"bytes"
	"context"
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

// New writes lines of a format, of a level and above. A log that takes nothing, or that fails, does not stop the program: lines are
// lost and counted (see writer).
func New(w io.Writer, level slog.Level, format string) logr.Logger {
	all := &writer{out: w, notice: func(lost int) []byte {
		var line bytes.Buffer
		slog.New(newHandler(&line, level, format)).Error("Lines of the log were lost", "lines", lost)
		return line.Bytes()
	}}
	return logr.FromSlogHandler(leveled{Handler: newHandler(all, level, format)})
}

func newHandler(w io.Writer, level slog.Level, format string) slog.Handler {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: levelName}
	if format == JSON {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}

// What Warn puts into a logger, and the handler takes out again. Other sinks write it.
const (
	warningKey   = "severity"
	warningValue = "warning"
)

// Warn logs a problem that a person should look at although the program continues. logr has no such level.
func Warn(log logr.Logger, message string, keysAndValues ...any) {
	log.WithValues(warningKey, warningValue).Info(message, keysAndValues...)
}

// leveled writes what is logged through Warn at slog's level for warnings.
type leveled struct {
	slog.Handler
	warns bool
}

// level is the one at which a message of a logger is written.
func (h leveled) level(l slog.Level) slog.Level {
	if h.warns && l == slog.LevelInfo {
		return slog.LevelWarn
	}
	return l
}

func (h leveled) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, h.level(l))
}

func (h leveled) Handle(ctx context.Context, r slog.Record) error {
	r.Level = h.level(r.Level)
	return h.Handler.Handle(ctx, r)
}

func (h leveled) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 1 && attrs[0].Key == warningKey && attrs[0].Value.Kind() == slog.KindString && attrs[0].Value.String() == warningValue {
		return leveled{h.Handler, true}
	}
	return leveled{h.Handler.WithAttrs(attrs), h.warns}
}

func (h leveled) WithGroup(name string) slog.Handler {
	return leveled{h.Handler.WithGroup(name), h.warns}
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
	case level >= slog.LevelWarn:
		a.Value = slog.StringValue("WARN")
	case level >= slog.LevelInfo:
		a.Value = slog.StringValue("INFO")
	case level == -1:
		a.Value = slog.StringValue("DEBUG")
	default:
		a.Value = slog.StringValue("TRACE")
	}
	return a
}
