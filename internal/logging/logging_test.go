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
		"WARN":  func(l logr.Logger) { Warn(l.WithName("part").WithValues("pool", "x"), "Said") },
		"INFO":  func(l logr.Logger) { l.Info("Said") },
		"DEBUG": func(l logr.Logger) { l.V(1).Info("Said") },
		"TRACE": func(l logr.Logger) { l.V(2).Info("Said") },
	}
	for level, want := range map[string]string{
		"error": "ERROR", "warn": "ERROR WARN", "info": "ERROR WARN INFO", "debug": "ERROR WARN INFO DEBUG",
		"trace": "ERROR WARN INFO DEBUG TRACE",
	} {
		for _, format := range []string{Text, JSON} {
			var got []string
			for _, name := range []string{"ERROR", "WARN", "INFO", "DEBUG", "TRACE"} {
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

func TestAWarningKeepsItsLoggersNameAndValues(t *testing.T) {
	var b strings.Builder
	log := New(&b, Levels["warn"], Text).WithName("part").WithValues("pool", "x")
	Warn(log, "Engine unreachable", "reason", "refused")
	log.Info("Engine reachable again")
	_, line, _ := strings.Cut(b.String(), " ") // without the time
	if want := "level=WARN msg=\"Engine unreachable\" pool=x logger=part reason=refused\n"; line != want {
		t.Errorf("%q, want %q", line, want)
	}
}
