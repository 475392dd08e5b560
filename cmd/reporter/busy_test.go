package main

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnEngineBehindTLSIsAsked(t *testing.T) {
	page := "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) })
	engine := httptest.NewTLSServer(handler)
	defer engine.Close()
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Replace(page, "running 0", "running 2", 1))
	}))
	defer other.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: engine.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args       []string
		busy, fail bool
	}{
		"by its CA and name":       {[]string{"--engine-metrics", engine.URL, "--engine-ca", ca, "--engine-name", "example.com"}, false, false},
		"with another name":        {[]string{"--engine-metrics", engine.URL, "--engine-ca", ca, "--engine-name", "other.example"}, true, true},
		"of an unknown CA":         {[]string{"--engine-metrics", engine.URL, "--engine-name", "example.com"}, true, true},
		"with a CA that is gone":   {[]string{"--engine-metrics", engine.URL, "--engine-name", "example.com", "--engine-ca", ca + "-not"}, true, true},
		"unchecked":                {[]string{"--engine-metrics", engine.URL, "--engine-unchecked"}, false, false},
		"one of two ranks is busy": {[]string{"--engine-metrics", engine.URL + "," + other.URL, "--engine-unchecked"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(append([]string{"--pod", "p", "--events-listen", "127.0.0.1:0", "--pickers", "127.0.0.1:1", "--insecure"}, tc.args...), io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			busy, err := o.busy(t.Context())
			if busy != tc.busy || (err != nil) != tc.fail {
				t.Errorf("busy %v, error %v", busy, err)
			}
		})
	}
}
