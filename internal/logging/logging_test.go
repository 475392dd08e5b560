package logging

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

func TestLevels(t *testing.T) {
	say := map[string]func(logr.Logger){
		"ERROR": func(l logr.Logger) { l.Error(errors.New("x"), "Said") },
		"INFO":  func(l logr.Logger) { l.Info("Said") },
		"DEBUG": func(l logr.Logger) { l.V(1).Info("Said") },
		"TRACE": func(l logr.Logger) { l.V(2).Info("Said") },
	}
	for level, want := range map[string]string{
		"error": "ERROR", "warn": "ERROR", "info": "ERROR INFO", "debug": "ERROR INFO DEBUG", "trace": "ERROR INFO DEBUG TRACE",
	} {
		for _, format := range []string{Text, JSON} {
			var got []string
			for _, name := range []string{"ERROR", "INFO", "DEBUG", "TRACE"} {
				var b strings.Builder
				say[name](New(&b, Levels[level], format))
				if strings.Contains(b.String(), name) {
					got = append(got, name)
				}
				if (format == JSON) != strings.HasPrefix(b.String(), "{") && b.Len() > 0 {
					t.Errorf("%s: %q is not %s", name, b.String(), format)
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s, %s: %v is written, want %s", level, format, got, want)
			}
		}
	}
}
