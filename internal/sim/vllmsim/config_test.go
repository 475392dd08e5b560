package vllmsim

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
)

func TestEventsConfig(t *testing.T) {
	cases := map[string]struct {
		text string
		want EventsConfig
	}{
		"off by default":     {`{}`, EventsConfig{Disabled: true}},
		"the null publisher": {`{"enable_kv_cache_events": true, "publisher": "null"}`, EventsConfig{Disabled: true}},
		"on": {
			`{"enable_kv_cache_events": true}`,
			EventsConfig{Endpoint: "tcp://*:5557", NoReplay: true, BufferSteps: 10_000, HWM: 100_000},
		},
		"everything": {
			`{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://[::]:1", "replay_endpoint": "tcp://*:2",
			"buffer_steps": 3, "hwm": 4, "max_queue_size": 5, "topic": "kv@a@m"}`,
			EventsConfig{Endpoint: "tcp://[::]:1", ReplayEndpoint: "tcp://*:2", BufferSteps: 3, HWM: 4, Topic: "kv@a@m"},
		},
		"an address connects": {
			`{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:5557", "replay_endpoint": null}`,
			EventsConfig{Endpoint: "tcp://127.0.0.1:5557", Connect: true, NoReplay: true, BufferSteps: 10_000, HWM: 100_000},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseEventsConfig(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(EventsConfig{}, "Tamper")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for name, text := range map[string]string{
		"no JSON":             ``,
		"an unknown field":    `{"enable": true}`,
		"another publisher":   `{"enable_kv_cache_events": true, "publisher": "kafka"}`,
		"another transport":   `{"enable_kv_cache_events": true, "endpoint": "ipc:///tmp/x"}`,
		"no port":             `{"enable_kv_cache_events": true, "endpoint": "tcp://*"}`,
		"a port out of range": `{"enable_kv_cache_events": true, "replay_endpoint": "tcp://*:70000"}`,
	} {
		if got, err := ParseEventsConfig(text); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestHostPort(t *testing.T) {
	cases := map[string]struct {
		endpoint string
		rank     int
		want     string
	}{
		"every interface":             {"tcp://*:5557", 0, "0.0.0.0:5557"},
		"a rank moves the port":       {"tcp://*:5557", 3, "0.0.0.0:5560"},
		"but not a free port":         {"127.0.0.1:0", 3, "127.0.0.1:0"},
		"IPv6":                        {"tcp://[::]:1", 0, "[::]:1"},
		"a name and no scheme":        {"localhost:80", 0, "localhost:80"},
		"one address of a host's own": {"127.0.0.2:9", 1, "127.0.0.2:10"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got, err := hostPort(tc.endpoint, tc.rank); err != nil || got != tc.want {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestRefusedConfigurations(t *testing.T) {
	for name, cfg := range map[string]Config{
		"unknown profile":                        {Profile: "tpu"},
		"negative speed-up":                      {SpeedUp: -1},
		"negative stream interval":               {StreamInterval: -1},
		"negative buffer":                        {Events: EventsConfig{BufferSteps: -1}},
		"digests of an old release":              {Release: 9<<8 | 1, Events: EventsConfig{DigestHashes: true}},
		"a bound of queues before there was one": {Release: 28 << 8, MaxQueuedRequests: 1},
		"a shutdown timeout before 0.18":         {Release: 17 << 8, ShutdownTimeout: 1},
		"a negative bound of queues":             {MaxQueuedRequests: -1},
		"context over the cache":                 {NumBlocks: 2, MaxModelLen: 33},
		"negative blocks":                        {NumBlocks: -2},
		"no such address":                        {Host: "256.0.0.1"},
		"no such events address":                 {Events: EventsConfig{Endpoint: "256.0.0.1:1"}},
		"no such replay address":                 {Events: EventsConfig{ReplayEndpoint: "256.0.0.1:1"}},
		"an endpoint without port":               {Events: EventsConfig{Endpoint: "tcp://*"}},
		"a replay without port":                  {Events: EventsConfig{ReplayEndpoint: "tcp://*"}},
	} {
		e, err := Start(cfg)
		if err == nil {
			e.Kill()
			t.Errorf("%s: started", name)
		}
	}
}

func TestProfileAndOverrides(t *testing.T) {
	p, err := enginemodel.LookupProfile("70b-tp4-h100")
	if err != nil {
		t.Fatal(err)
	}
	e := start(t, Config{Profile: p.Name, Time: enginemodel.TimeModel{Linear: 1}})
	want := p.Time
	want.Linear = 1
	if c := e.Config(); c.Time != want || c.NumBlocks != p.KVTokens/16 {
		t.Errorf("blocks %d, time %+v", c.NumBlocks, c.Time)
	}
}

func TestStartupDelayIsCutShort(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := StartContext(ctx, Config{StartupDelay: time.Hour}); err == nil {
		t.Error("started")
	}
	e := start(t, Config{StartupDelay: time.Millisecond})
	if status, _ := get(t, e, "/health"); status != 200 {
		t.Errorf("health %d", status)
	}
}

func TestSeedsAreDrawn(t *testing.T) {
	hashes := map[uint64]int{}
	for _, seed := range []uint64{0, 0, 5, 5} {
		e := start(t, Config{Seed: seed})
		complete(t, e, "/v1/completions", object{"prompt": ids(1, 17), "max_tokens": 1})
		for h := range e.Blocks() {
			hashes[h]++
		}
	}
	if len(hashes) != 3 {
		t.Errorf("%d different hashes of one block in four engines, want 3: two drawn, one given twice", len(hashes))
	}
}

func TestEnginesWithoutEvents(t *testing.T) {
	e := start(t, Config{Events: EventsConfig{Disabled: true}})
	complete(t, e, "/v1/completions", object{"prompt": ids(1, 17), "max_tokens": 1})
	if e.EventsAddr() != "" || e.ReplayAddr() != "" || e.Subscribers() != 0 || e.KickSubscribers() != 0 || len(e.Blocks()) != 1 {
		t.Error("an engine without events has some")
	}
}

// TestTheReleaseDecidesHowEventsLook: the layouts themselves are compared with recorded frames in package judge.
func TestTheReleaseDecidesHowEventsLook(t *testing.T) {
	for name, tc := range map[string]struct {
		fields  int // of a BlockStored that is a list
		digests bool
	}{
		"0.9.0": {fields: 6}, "0.10.1": {fields: 6}, "0.10.2": {fields: 7}, "0.14.1": {fields: 8}, "0.17.0": {fields: 9},
		"0.20.2": {fields: 10, digests: true}, "0.23": {fields: 12}, "0.24": {}, "0.32.0": {},
	} {
		release, err := ParseRelease(name)
		if err != nil {
			t.Fatal(err)
		}
		e := start(t, Config{Release: release, Events: EventsConfig{DigestHashes: tc.digests}})
		complete(t, e, "/v1/completions", object{"prompt": ids(1, 17), "max_tokens": 1})
		v, _ := unpack(e.pub.since(0)[0].payload)
		switch ev := v.([]any)[1].([]any)[0].(type) {
		case map[string]any:
			if tc.fields != 0 || ev["type"] != "BlockStored" {
				t.Errorf("%s: %v", name, ev)
			}
		case []any:
			if len(ev) != tc.fields {
				t.Errorf("%s: %d fields, want %d", name, len(ev), tc.fields)
			}
			if _, digest := ev[1].([]any)[0].([]byte); digest != tc.digests {
				t.Errorf("%s: hashes %v", name, ev[1])
			}
		}
	}
}

func TestReleases(t *testing.T) {
	for text, want := range map[string]string{"0.24": "0.24.0", "v0.11.1": "0.11.1", "0.32.0": "0.32.0", "0.32.9": "0.32.9"} {
		if r, err := ParseRelease(text); err != nil || r.String() != want {
			t.Errorf("%s: %v, %v", text, r, err)
		}
	}
	for _, text := range []string{"", "0", "newest", "0.8.5", "1.2.0", "0.33.0", "0.24.0.1", "0.-1", "0.24.0rc1", "0.300"} {
		if r, err := ParseRelease(text); err == nil {
			t.Errorf("%q is read as %v", text, r)
		}
	}
}
