//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/cpu"
	"github.com/kvasir-dev/kvasir/hack/demo/fleet"
	"github.com/kvasir-dev/kvasir/hack/demo/progress"
	"github.com/kvasir-dev/kvasir/hack/demo/replay"
	"github.com/kvasir-dev/kvasir/hack/demo/report"
	"github.com/kvasir-dev/kvasir/hack/demo/summary"
	"github.com/kvasir-dev/kvasir/internal/sim/chat"
	"github.com/kvasir-dev/kvasir/internal/sim/enginemodel"
	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// session is one execution of the demo.
type session struct {
	*options
	plan   *replay.Plan
	time   enginemodel.TimeModel
	stdout io.Writer
	dir    string // for objects and logs
}

// demo runs every strategy and reports. It fails with a *wrongError if a check does.
func demo(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	plan, err := o.plan()
	if err != nil {
		return err
	}
	profile, err := enginemodel.LookupProfile(o.profile)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kvasir-demo-")
	if err != nil {
		return fmt.Errorf("making a directory for the fleet: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	s := &session{options: o, plan: plan, time: profile.Time, stdout: stdout, dir: dir}
	r := &report.Report{Config: s.config()}
	s.say("%d simulated pods, %d requests of a trace and %d of %d chats, %g times as fast as real time\n",
		o.pods, len(plan.Trace), plan.Chat.Requests(), len(plan.Chat.Sessions), o.speedUp)
	if o.prefillers > 0 {
		return s.apart(ctx)
	}
	for i, strategy := range o.strategies {
		run, err := s.run(ctx, strategy, i == len(o.strategies)-1)
		if err != nil {
			return err
		}
		r.Runs = append(r.Runs, *run)
	}
	if err := s.publish(r); err != nil {
		return err
	}
	if wrong := r.Wrong(); len(wrong) > 0 {
		return &wrongError{sentences: wrong}
	}
	return nil
}

func (s *session) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.stdout, format, args...)
}

// plan is what every run sends.
func (o *options) plan() (*replay.Plan, error) {
	list, err := trace.Slice()
	if err != nil {
		return nil, err
	}
	requests, arrivals := o.workload(list)
	span := o.modelTime()
	if n := len(arrivals); n > 0 && o.requests > 0 {
		span = min(span, arrivals[n-1])
	}
	script, err := chat.New(chat.Default(int(o.chats*span.Minutes()), span))
	if err != nil {
		return nil, err
	}
	return &replay.Plan{Model: fleet.Model, Trace: requests, Arrivals: arrivals, Chat: script, SpeedUp: o.speedUp}, nil
}

// run starts a fleet, sends everything through it and ends it. The last fleet can be kept.
func (s *session) run(ctx context.Context, strategy string, last bool) (run *report.Run, err error) {
	f, err := s.start(ctx, strategy, strategy, 0)
	if err != nil {
		return nil, err
	}
	stopped := false
	defer func() {
		if !stopped {
			_, _, stopErr := f.Stop()
			err = errors.Join(err, stopErr)
		}
	}()
	meter, before, start := cpu.Start(ctx), ownCPU(), time.Now()
	samples, err := s.drive(ctx, strategy, strategy, f, meter)
	m := report.Machine{WallSeconds: time.Since(start).Seconds(), ClientCPUSeconds: (ownCPU() - before).Seconds()}
	m.MeanCPU, m.MaxCPU = meter.Stop()
	if err != nil {
		return nil, err
	}
	if s.keep && last {
		s.keepRunning(ctx, f)
	}
	names := f.Pods
	stopped = true
	pods, picker, err := f.Stop()
	if err != nil {
		return nil, err
	}
	m.PodsCPUSeconds, m.PickerCPUSeconds = pods.Seconds(), picker.Seconds()
	result := report.NewRun(strategy, names, samples, s.prefill, m)
	return &result, nil
}

// start starts a fleet, with its files in a directory of a name.
func (s *session) start(ctx context.Context, name, strategy string, prefillers int) (*fleet.Fleet, error) {
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making a directory for the fleet: %w", err)
	}
	return fleet.Start(ctx, fleet.Options{
		Bin: s.bin, Dir: dir, Pods: s.pods, Strategy: strategy, Prefillers: prefillers, Profile: s.profile,
		Blocks: s.kvTokens / fleet.BlockTokens, SpeedUp: s.speedUp, StreamInterval: s.interval, Tokenizer: s.tokenizer,
	})
}

// drive sends the plan through a fleet and shows how far it is, under a title. It ends early when a process of the fleet does.
func (s *session) drive(ctx context.Context, title, strategy string, f *fleet.Fleet, meter *cpu.Meter) ([]summary.Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel(nil)
	helpers.Go(func() {
		if err := f.Watch(ctx); err != nil {
			cancel(err)
		}
	})

	var counters replay.Counters
	start, done := time.Now(), make(chan struct{})
	var shown sync.WaitGroup
	shown.Go(func() {
		width, every := 0, progress.PlainEvery
		if file, ok := s.stdout.(*os.File); ok {
			width = progress.Width(file)
		}
		if width > 0 {
			every = progress.TerminalEvery
		}
		// A display that fails does not end the run: the reports do not depend on it.
		_ = progress.Show(s.stdout, width, every, done, func() progress.State {
			sent, ended := int(counters.Sent.Load()), int(counters.Done.Load())
			return progress.State{
				Title: title, Done: ended, Total: s.plan.Requests(), InFlight: max(0, sent-ended), Failed: int(counters.Failed.Load()),
				Elapsed: time.Since(start), Expected: s.expected(), CPU: meter.Now(),
			}
		})
	})
	client := replay.NewClient(f.ProxyURL, strategy)
	defer client.Close()
	samples, err := s.plan.Run(ctx, client, &counters)
	close(done)
	shown.Wait()
	return samples, err
}

// prefill is how long a pod takes for a prompt.
func (s *session) prefill(tokens, cached int) time.Duration {
	return s.time.Prefill(tokens, cached, enginemodel.DefaultMaxBatchedTokens)
}

// expected is about how long a run takes, in wall time: until the last answer.
func (s *session) expected() time.Duration {
	last := time.Duration(0)
	for i, at := range s.plan.Arrivals {
		last = max(last, at+time.Duration(s.plan.Trace[i].Output)*chat.TokenTime)
	}
	for i := range s.plan.Chat.Sessions {
		c := &s.plan.Chat.Sessions[i]
		end := c.Start
		for _, turn := range c.Turns {
			end += turn.Think + time.Duration(turn.MaxTokens)*chat.TokenTime
		}
		last = max(last, end)
	}
	return time.Duration(float64(last) / s.speedUp)
}

// keepRunning leaves a fleet alone until ctx ends.
func (s *session) keepRunning(ctx context.Context, f *fleet.Fleet) {
	s.say("\nThe fleet stays until Ctrl-C.\n  proxy    %s/v1\n  metrics  %s/metrics\n  objects  %s\n", f.ProxyURL, f.MetricsURL, f.Objects)
	for i, pod := range f.Pods {
		s.say("  %-8s %s\n", pod, f.PodURLs[i])
	}
	if err := f.Watch(ctx); err != nil {
		s.say("%v\n", err)
	}
}

// publish prints the table and writes the files.
func (s *session) publish(r *report.Report) error {
	s.say("\n")
	if err := r.WriteTable(s.stdout); err != nil {
		return fmt.Errorf("printing the table: %w", err)
	}
	s.say("\n")
	for _, sentence := range r.Takeaways() {
		s.say("%s\n", sentence)
	}
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return fmt.Errorf("making the directory for the report: %w", err)
	}
	for name, write := range map[string]func(io.Writer) error{
		"report.json": r.WriteJSON, "report.html": r.WriteHTML, "requests.jsonl": r.WriteRequests,
	} {
		if err := writeFile(filepath.Join(s.out, name), write); err != nil {
			return err
		}
	}
	s.say("\nWritten to %s: report.json, report.html, and requests.jsonl with every request\n", s.out)
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return errors.Join(write(f), f.Close())
}

// config is the report's description of the runs.
func (s *session) config() report.Config {
	p := s.plan
	c := report.Config{
		Pods: s.pods, Profile: s.profile, BlockTokens: fleet.BlockTokens, KVTokensPerPod: s.kvTokens / fleet.BlockTokens * fleet.BlockTokens,
		SpeedUp: s.speedUp, StreamInterval: s.interval, TraceRate: s.rate, TraceRequests: len(p.Trace),
		TraceSource: trace.Source, TraceLicence: trace.Licence,
		TraceCut: fmt.Sprintf("Replayed: the first %d of its requests from minute %g on; the requests of a 3 s tick are spread evenly over it; tokens are made up, the same for the same block id.",
			len(p.Trace), trace.SliceFrom.Minutes()),
		ChatSessions: len(p.Chat.Sessions), ChatRequests: p.Chat.Requests(), SystemWords: chat.Default(0, 0).SystemWords,
		CPUs: runtime.NumCPU(), Platform: runtime.GOOS + "/" + runtime.GOARCH, GoVersion: runtime.Version(),
	}
	if n := len(p.Arrivals); n > 0 {
		c.TraceSeconds = p.Arrivals[n-1].Seconds()
	}
	return c
}

// ownCPU is the processor time that this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
