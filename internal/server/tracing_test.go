package server

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
)

// TestARatioWithoutTracingIsReported: a share of requests that are never traced was meant to be traced.
func TestARatioWithoutTracingIsReported(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"} {
		t.Setenv(name, "")
	}
	half := 0.5
	for name, tc := range map[string]struct {
		options tracingOptions
		want    int
	}{
		"neither":            {tracingOptions{}, 0},
		"a ratio only":       {tracingOptions{ratio: &half}, 1},
		"with the collector": {tracingOptions{ratio: &half, endpoint: "http://127.0.0.1:1"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var logs []string
			_, end, err := openTracing(t.Context(), &tc.options, funcr.New(func(_, args string) { logs = append(logs, args) }, funcr.Options{}))
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			if len(logs) != tc.want || tc.want > 0 && !strings.Contains(logs[0], "--tracing-ratio has no effect") {
				t.Errorf("logs %q", logs)
			}
		})
	}
}
