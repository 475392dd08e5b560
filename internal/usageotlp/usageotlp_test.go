package usageotlp

import (
	"context"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/kvasir-dev/kvasir/internal/usagelog"
)

// patient is how long a test waits for what must happen.
const patient = 20 * time.Second

func environment(pairs ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return m[name] }
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	all []string // guarded by mu
}

func (l *lines) logr() logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, args)
	}, funcr.Options{})
}

func (l *lines) with(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// open makes an exporter to a receiver, with a queue of some records and batches of some, and more of the environment.
func open(t *testing.T, endpoint, protocol string, waiting, batch int, log logr.Logger, more ...string) *Exporter {
	t.Helper()
	more = append(more, "OTEL_EXPORTER_OTLP_PROTOCOL", protocol, "OTEL_BLRP_SCHEDULE_DELAY", "20", // ms
		"OTEL_BLRP_MAX_QUEUE_SIZE", strconv.Itoa(waiting), "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", strconv.Itoa(batch))
	e, err := Open(t.Context(), Config{Endpoint: endpoint, Log: log, Getenv: environment(more...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(e, 0) })
	return e
}

func end(e *Exporter, within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	e.Close(ctx)
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patient); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func write(e *Exporter, n int) {
	for i := range n {
		e.Write(&usagelog.Record{Request: strconv.Itoa(i), Time: time.Unix(1, 0)})
	}
}

// both runs a test for gRPC and HTTP.
func both(t *testing.T, test func(t *testing.T, protocol string, url func(*receiver) string)) {
	t.Helper()
	t.Run("gRPC", func(t *testing.T) { test(t, "grpc", func(r *receiver) string { return r.grpc }) })
	t.Run("HTTP", func(t *testing.T) { test(t, "http/protobuf", func(r *receiver) string { return r.http }) })
}

// full is a record with all fields.
func full(t *testing.T) *usagelog.Record {
	t.Helper()
	r := new(usagelog.Record)
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Interface().(type) {
		case time.Time:
			f.Set(reflect.ValueOf(time.Unix(1700000000, 5000).UTC()))
		case string, usagelog.Source:
			f.SetString("text " + strconv.Itoa(i))
		case bool:
			f.SetBool(true)
		case int, int64:
			f.SetInt(int64(i) << 33)
		case *int:
			f.Set(reflect.ValueOf(&i))
		case float64:
			f.SetFloat(float64(i) + 0.125)
		default:
			t.Fatalf("a field of %s", f.Type())
		}
	}
	return r
}

// TestARecordHasTheFieldsOfItsLine: those, and no other.
func TestARecordHasTheFieldsOfItsLine(t *testing.T) {
	both(t, func(t *testing.T, protocol string, url func(*receiver) string) {
		r := newReceiver(t)
		e := open(t, url(r), protocol, 100, 10, logr.Discard())
		records := []*usagelog.Record{full(t), {Time: time.Unix(1, 0).UTC()}, {Time: time.Unix(2, 0).UTC(), CachedTokens: new(int), Outcome: "refused"}}
		for _, one := range records {
			e.Write(one)
		}
		until(t, "all arrive", func() bool { return len(r.got()) == len(records) })
		for i, got := range r.got() {
			line, err := json.Marshal(records[i])
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]any{}
			if err := json.Unmarshal(line, &want); err != nil {
				t.Fatal(err)
			}
			if at := time.Unix(0, int64(got.GetTimeUnixNano())).UTC().Format(time.RFC3339Nano); at != want["time"] {
				t.Errorf("the time of %s is %s", line, at)
			}
			delete(want, "time")
			if diff := cmp.Diff(want, fields(got)); diff != "" || got.GetEventName() != "kvasir.usage" || got.GetDroppedAttributesCount() != 0 {
				t.Errorf("%s\nis %v: %s", line, got, diff)
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.services["kvasir-picker"] || len(r.services) != 1 {
			t.Errorf("the resources are %v", r.services)
		}
	})
}

func TestTheEnvironmentSaysWhereRecordsGo(t *testing.T) {
	r := newReceiver(t)
	for name, tc := range map[string]struct {
		endpoint string
		env      []string
		want     string // the way that records take; empty for none
	}{
		"no decision anywhere":        {},
		"the flag":                    {endpoint: r.grpc, want: "grpc"},
		"the flag, and HTTP":          {endpoint: r.http, env: []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}, want: "http"},
		"the flag, and HTTP for logs": {endpoint: r.http, env: []string{"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf"}, want: "http"},
		"the environment":             {env: []string{"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", r.grpc}, want: "grpc"},
		"an endpoint of all signals":  {env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", r.grpc}},
		"which logs are to use":       {env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", r.grpc, "OTEL_LOGS_EXPORTER", "otlp"}, want: "grpc"},
		"with headers": {env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", r.http, "OTEL_LOGS_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_LOGS_HEADERS", "authorization=key",
			"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf"}, want: "http"},
		"none, by the environment": {env: []string{"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", r.grpc, "OTEL_LOGS_EXPORTER", "none"}},
		"turned off":               {endpoint: r.grpc, env: []string{"OTEL_SDK_DISABLED", "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			for i := 0; i < len(tc.env); i += 2 {
				t.Setenv(tc.env[i], tc.env[i+1]) // for the SDK, which reads it itself
			}
			r.mu.Lock()
			r.ways, r.headers = map[string]bool{}, map[string]bool{}
			r.mu.Unlock()
			e, err := Open(t.Context(), Config{Endpoint: tc.endpoint, Getenv: environment(tc.env...), Log: logr.Discard()})
			if err != nil || (e != nil) != (tc.want != "") {
				t.Fatalf("exported: %v, %v", e != nil, err)
			}
			if e == nil {
				return
			}
			write(e, 3)
			end(e, patient)
			if sent, lost := e.Stats(); sent != 3 || lost != 0 {
				t.Errorf("%d sent and %d lost", sent, lost)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if !r.ways[tc.want] || len(r.ways) != 1 || r.headers["key"] != (name == "with headers") {
				t.Errorf("records came by %v with %v", r.ways, r.headers)
			}
		})
	}
	if _, err := Open(t.Context(), Config{Endpoint: r.grpc, Getenv: environment("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke")}); err == nil {
		t.Error("a protocol that is none is taken")
	}
}

// TestTheCollectorsCertificateIsVerified by the authority of the environment; without it, nothing is sent.
func TestTheCollectorsCertificateIsVerified(t *testing.T) {
	both(t, func(t *testing.T, protocol string, _ func(*receiver) string) {
		r := newReceiver(t)
		to, authority := secured(t, r)
		strange := open(t, to, protocol, 100, 10, logr.Discard())
		write(strange, 3)
		end(strange, patient)
		if sent, lost := strange.Stats(); sent != 0 || lost != 3 || len(r.got()) != 0 {
			t.Errorf("%d sent, %d lost, %d arrived without the authority", sent, lost, len(r.got()))
		}
		t.Setenv("OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE", authority)
		e := open(t, to, protocol, 100, 10, logr.Discard(), "OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE", authority)
		write(e, 3)
		end(e, patient)
		if sent, lost := e.Stats(); sent != 3 || lost != 0 || len(r.got()) != 3 {
			t.Errorf("%d sent, %d lost, %d arrived", sent, lost, len(r.got()))
		}
	})
}

// TestNoRequestWaitsForTheCollector: one that does not answer costs the records that find no room, and no more; when it answers, the
// others arrive. The log has one line about it.
func TestNoRequestWaitsForTheCollector(t *testing.T) {
	both(t, func(t *testing.T, protocol string, url func(*receiver) string) {
		const room, written = 40, 1000
		r, log := newReceiver(t), new(lines)
		r.feel(hangs)
		e := open(t, url(r), protocol, room, 10, log.logr())
		write(e, written) // which would not return, if it waited
		if sent, lost := e.Stats(); sent != 0 || lost != written-room {
			t.Fatalf("%d sent, %d lost of %d with room for %d", sent, lost, written, room)
		}
		r.feel(takes)
		until(t, "the records that waited are sent", func() bool { sent, _ := e.Stats(); return sent == room })
		if _, lost := e.Stats(); lost != written-room || len(r.got()) != room {
			t.Errorf("%d lost, %d arrived", lost, len(r.got()))
		}
		write(e, room)
		until(t, "it takes more", func() bool { sent, lost := e.Stats(); return sent == 2*room && lost == written-room })
		until(t, "the loss is reported", func() bool { return log.with("too many wait") == 1 })
		if n := log.with("failed"); n != 1 {
			t.Errorf("%d lines", n)
		}
	})
}

// TestACollectorThatIsAwayCostsNothingButTime: not while there is room.
func TestACollectorThatIsAwayCostsNothingButTime(t *testing.T) {
	both(t, func(t *testing.T, protocol string, url func(*receiver) string) {
		away := newReceiverAt(t, listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0"))
		for name, fault := range map[string]func(t *testing.T) (to string, heal func() *receiver){
			"it is busy": func(*testing.T) (string, func() *receiver) {
				away.feel(busy)
				return url(away), func() *receiver { away.feel(takes); return away }
			},
			"it is not there": func(t *testing.T) (string, func() *receiver) {
				overGRPC, overHTTP := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
				at := &receiver{grpc: "http://" + overGRPC.Addr().String(), http: "http://" + overHTTP.Addr().String()}
				_, _ = overGRPC.Close(), overHTTP.Close()
				return url(at), func() *receiver {
					return newReceiverAt(t, listen(t, strings.TrimPrefix(at.grpc, "http://")), listen(t, strings.TrimPrefix(at.http, "http://")))
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				log := new(lines)
				to, heal := fault(t)
				e := open(t, to, protocol, 100, 10, log.logr())
				write(e, 100)
				until(t, "it is reported", func() bool { return log.with("Exporting usage records failed") == 1 })
				if sent, lost := e.Stats(); sent != 0 || lost != 0 {
					t.Errorf("%d sent, %d lost meanwhile", sent, lost)
				}
				r := heal()
				until(t, "all are sent", func() bool { sent, _ := e.Stats(); return sent == 100 })
				if _, lost := e.Stats(); lost != 0 || len(r.got()) != 100 {
					t.Errorf("%d lost, %d arrived", lost, len(r.got()))
				}
				if n := log.with(""); n != 1 {
					t.Errorf("%d lines: %q", n, log.all)
				}
			})
		}
	})
}

// TestWhatIsRefusedIsLost, and not sent again; what comes later is sent.
func TestWhatIsRefusedIsLost(t *testing.T) {
	both(t, func(t *testing.T, protocol string, url func(*receiver) string) {
		r, log := newReceiver(t), new(lines)
		r.feel(refuses)
		e := open(t, url(r), protocol, 1000, 10, log.logr())
		write(e, 100)
		until(t, "all are lost", func() bool { _, lost := e.Stats(); return lost == 100 })
		if n := log.with(""); n != 1 {
			t.Errorf("%d lines for %d batches: %q", n, r.batches(), log.all)
		}
		if r.batches() < 10 || r.batches() > 100 {
			t.Errorf("%d batches of at most 10 records", r.batches())
		}
		r.feel(takes)
		write(e, 50)
		until(t, "the others are sent", func() bool { sent, lost := e.Stats(); return sent == 50 && lost == 100 })
		r.feel(takesAll) // but the first of each batch
		before := r.batches()
		write(e, 50)
		until(t, "a part is sent", func() bool { sent, lost := e.Stats(); return sent+lost == 200 })
		if sent, lost := e.Stats(); int(sent) != len(r.got()) || int(lost) != 100+r.batches()-before {
			t.Errorf("%d sent, %d lost: %d arrived, in the end by %d batches that lack one", sent, lost, len(r.got()), r.batches()-before)
		}
	})
}

// TestTheEndIsBounded: everything is sent if the collector takes it, without a pause after a failure, and lost once the time is over.
func TestTheEndIsBounded(t *testing.T) {
	both(t, func(t *testing.T, protocol string, url func(*receiver) string) {
		r, log := newReceiver(t), new(lines)
		e := open(t, url(r), protocol, 1000, 10, log.logr())
		r.feel(busy)
		write(e, 500)
		until(t, "a batch has failed", func() bool { return r.batches() > 0 })
		r.feel(takes)
		end(e, patient)
		if sent, lost := e.Stats(); sent != 500 || lost != 0 || len(r.got()) != 500 {
			t.Errorf("%d sent, %d lost, %d arrived", sent, lost, len(r.got()))
		}
		write(e, 3)
		if sent, lost := e.Stats(); sent != 500 || lost != 3 {
			t.Errorf("%d sent, %d lost after the end", sent, lost)
		}

		r.feel(hangs)
		late, before := open(t, url(r), protocol, 1000, 10, log.logr()), r.batches()
		write(late, 500)
		until(t, "a batch is on its way", func() bool { return r.batches() > before })
		end(late, 100*time.Millisecond) // which would not return, if it waited for the collector
		if sent, lost := late.Stats(); sent != 0 || lost != 500 {
			t.Errorf("%d sent, %d lost", sent, lost)
		}
		if log.with("Usage records were not exported") != 1 {
			t.Errorf("the loss is not reported: %q", log.all)
		}
	})
}

// TestAnOutageCostsNoProcessorTime: what waits for a collector that does not answer is not looked at all the time.
func TestAnOutageCostsNoProcessorTime(t *testing.T) {
	r := newReceiver(t)
	r.feel(hangs)
	e := open(t, r.grpc, "grpc", 1000, 10, logr.Discard())
	write(e, 1000)
	until(t, "a batch is on its way", func() bool { return r.batches() > 0 })
	before := used(t)
	time.Sleep(time.Second)
	if spent := used(t) - before; spent > time.Second/2 {
		t.Errorf("%s in a second", spent)
	}
}

// used is the processor time that the process has taken.
func used(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkWrite is what a request waits for its record to be taken, while there is room and when there is none.
func BenchmarkWrite(b *testing.B) {
	cached := 512
	record := &usagelog.Record{Time: time.Unix(1, 0), Request: "6f1c1b1e-7b2a-4c35-9d8e-0f8d7a9b1c2d", Entrance: "proxy", Namespace: "llm", Pool: "chat", Tenant: "acme",
		Class: "paid", Model: "m", ServedModel: "m", Route: "/v1/chat/completions", Stream: true, Endpoint: "chat-7/0", Outcome: "completed", Status: 200, PromptTokens: 700,
		PromptSource: usagelog.Engine, CachedTokens: &cached, CompletionTokens: 90, CompletionSource: usagelog.Engine, ChargedTokens: 790, Duration: 900.5, FirstToken: 80}
	for name, room := range map[string]string{"room": "200000", "none": "1"} {
		b.Run(name, func(b *testing.B) {
			e, err := Open(b.Context(), Config{Endpoint: "http://127.0.0.1:1", Getenv: environment("OTEL_BLRP_MAX_QUEUE_SIZE", room), Log: logr.Discard()})
			if err != nil {
				b.Fatal(err)
			}
			defer end(e, 0)
			b.ReportAllocs()
			for b.Loop() {
				e.Write(record)
			}
		})
	}
}

// TestRecordsThatAreWrittenAtTheEndAreCountedOnce, as sent or as lost, and keep none of the writers.
func TestRecordsThatAreWrittenAtTheEndAreCountedOnce(t *testing.T) {
	r, log := newReceiver(t), new(lines)
	for range 100 {
		e := open(t, r.grpc, "grpc", 4, 2, log.logr())
		var writers sync.WaitGroup
		var written atomic.Int64
		begin := make(chan struct{})
		for range 8 {
			writers.Go(func() {
				<-begin
				for range 300 {
					written.Add(1)
					write(e, 1)
				}
			})
		}
		close(begin)
		end(e, 0)
		over := make(chan struct{})
		go func() { writers.Wait(); close(over) }()
		select {
		case <-over:
		case <-time.After(patient):
			t.Fatal("a writer waits for the exporter that has ended")
		}
		if sent, lost := e.Stats(); sent+lost != written.Load() {
			t.Fatalf("%d sent and %d lost of %d", sent, lost, written.Load())
		}
	}
}
