package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

func TestFlags(t *testing.T) {
	base := vllmsim.Config{
		Host: "127.0.0.1", Port: 8000, Profile: "8b-h100", BlockSize: 16, MaxBatchedTokens: 8192, MaxSeqs: 256, SpeedUp: 1,
		StreamInterval: 1, DefaultOutput: 128, Release: vllmsim.NewestRelease, Events: vllmsim.EventsConfig{Disabled: true},
	}
	cases := map[string]struct {
		args []string
		want func(c *vllmsim.Config)
	}{
		"nothing: no events": {want: func(*vllmsim.Config) {}},
		"names and keys": {
			args: []string{"--served-model-name", "a", "--served-model-name", "b", "--lora", "l", "--api-key", "k"},
			want: func(c *vllmsim.Config) {
				c.ServedModelNames, c.LoRAs, c.APIKeys = []string{"a", "b"}, []string{"l"}, []string{"k"}
			},
		},
		"rates": {
			args: []string{"--time-base", "3ms", "--time-linear", "22.5", "--time-attention", "0.0012", "--shutdown-timeout", "1.5"},
			want: func(c *vllmsim.Config) {
				c.Time = enginemodel.TimeModel{Base: 3 * time.Millisecond, Linear: 22.5 / 1e6, Attention: 0.0012 / 1e6}
				c.ShutdownTimeout = 1500 * time.Millisecond
			},
		},
		"vLLM's own events flag": {
			args: []string{"--kv-events-config", `{"enable_kv_cache_events": true, "replay_endpoint": "tcp://*:6000"}`, "--release", "v0.20.1"},
			want: func(c *vllmsim.Config) {
				c.Release = 20<<8 | 1
				c.Events = vllmsim.EventsConfig{
					Endpoint: "tcp://*:5557", ReplayEndpoint: "tcp://*:6000", BufferSteps: 10_000, HWM: 100_000,
				}
			},
		},
		"events by port": {
			args: []string{"--host", "127.0.0.2", "--kv-events-port", "1", "--kv-replay-port", "2", "--kv-events-topic", "t"},
			want: func(c *vllmsim.Config) {
				c.Host = "127.0.0.2"
				c.Events = vllmsim.EventsConfig{
					Endpoint: "127.0.0.2:1", ReplayEndpoint: "127.0.0.2:2", Topic: "t", BufferSteps: 10_000,
				}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want := base
			tc.want(&want)
			got, err := parseFlags(tc.args, io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			// Lists are of the flags' own type.
			if diff := cmp.Diff(want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Log" }, cmp.Ignore()),
				cmp.Comparer(func(a, b []string) bool { return strings.Join(a, " ") == strings.Join(b, " ") }),
				cmp.Comparer(func(a, b func(uint64, []byte, func(uint64, []byte))) bool { return a == nil && b == nil })); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRefusedFlags(t *testing.T) {
	for name, args := range map[string][]string{
		"an argument":              {"model"},
		"an unknown flag":          {"--gpu"},
		"no release":               {"--release", "newest"},
		"a release to come":        {"--release", "0.99"},
		"a release without events": {"--release", "0.8.5"},
		"no model there":           {"--model-dir", "testdata/none"},
		"two ways to say events":   {"--kv-events-config", "{}", "--kv-events-port", "1"},
		"broken JSON":              {"--kv-events-config", "{"},
		"a tokenizer alone":        {"--tokenizer", "testdata/none"},
		"an empty name":            {"--served-model-name", ""},
		"no level":                 {"--log-level", "loud"},
		"no format":                {"--log-format", "xml"},
		"a negative rate":          {"--time-linear", "-1"},
		"a rate that is no number": {"--time-linear", "fast"},
	} {
		var said bytes.Buffer
		if _, err := parseFlags(args, io.Discard, &said); err == nil || strings.Count(said.String(), "\n") != 1 {
			t.Errorf("%s: error %v, and %q is written, want one line", name, err, said.String())
		}
	}
	if status := start(t.Context(), []string{"--profile", "tpu"}, io.Discard, io.Discard); status != 1 {
		t.Errorf("an unknown profile ends with status %d, want 1", status)
	}
	var help, said bytes.Buffer
	if status := start(t.Context(), []string{"-h"}, &help, &said); status != 0 || said.Len() > 0 || !strings.Contains(help.String(), "\nKV events:\n") {
		t.Errorf("-h ends with status %d and writes %q and %q", status, help.String(), said.String())
	}
}

// output is a log that can be read while it is written.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) find(re *regexp.Regexp) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return re.FindStringSubmatch(o.b.String())
}

func TestServesUntilToldToStop(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := &output{}
	done := make(chan int, 1)
	go func() { done <- start(ctx, []string{"--port", "0", "--speed-up", "1000"}, io.Discard, log) }()
	address := regexp.MustCompile(`address=(\S+)`)
	for deadline := time.Now().Add(10 * time.Second); log.find(address) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not serving after ten seconds")
		}
	}
	resp, err := http.Post("http://"+log.find(address)[1]+"/v1/completions", "application/json", strings.NewReader(`{"prompt": "hello", "max_tokens": 2}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
	cancel()
	if status := <-done; status != 0 {
		t.Errorf("status %d", status)
	}
}
