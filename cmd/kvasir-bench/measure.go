package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kvasir-dev/kvasir/internal/bench"
)

// measure plays all turns and writes the reports. Turns that were complete when another failed are reported, too.
func (o *options) measure(ctx context.Context, stdout io.Writer) (err error) {
	if _, err := bench.ReadCounters(ctx, o.engines); err != nil {
		return err
	}
	before, after, end, err := o.ways(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	p := &bench.Plan{
		Engines: o.engines, Before: before, After: after, Pairs: o.pairs, Goals: o.goals, Drive: o.drive,
		Began: func(turn, of int, way *bench.Way) {
			_, _ = fmt.Fprintf(stdout, "turn %d of %d: %s\n", turn, of, way.Name)
		},
	}
	if err := o.warmUp(ctx, before); err != nil {
		return err
	}
	report := &bench.Report{Before: before.Name, After: after.Name, Goals: o.goals, Setup: o.setup(before, after), Began: time.Now()}
	busy := startMeter()
	var failed error
	report.Turns, failed = p.Run(ctx)
	report.CPU = busy()
	if len(report.Turns) < 2 {
		return failed
	}
	return errors.Join(failed, o.publish(report, stdout))
}

// warmUp sends a short load that is not measured: engines compile and capture what they need with their first requests.
func (o *options) warmUp(ctx context.Context, way *bench.Way) error {
	if o.command != "" {
		return nil
	}
	if way.Enter != nil {
		if err := way.Enter(ctx); err != nil {
			return err
		}
	}
	short := o.load
	short.Length = max(time.Second, min(short.Length/4, 30*time.Second))
	client := bench.NewClient(way.URL, o.key)
	defer client.Close()
	samples, err := short.Play(ctx, client, o.seed<<8, &bench.Progress{})
	if err != nil {
		return err
	}
	for i := range samples {
		if samples[i].Err == "" {
			return nil
		}
	}
	if len(samples) == 0 {
		return nil
	}
	return fmt.Errorf("every request of the warm-up failed, the first with: %s", samples[0].Err)
}

// drive sends the load of a turn.
func (o *options) drive(ctx context.Context, way *bench.Way, turn int) ([]bench.Sample, error) {
	seed := o.seed<<8 + uint64(turn)
	if o.command != "" {
		return nil, o.shell(ctx, way, turn, seed)
	}
	client := bench.NewClient(way.URL, o.key)
	defer client.Close()
	return o.load.Play(ctx, client, seed, &bench.Progress{})
}

// publish prints the comparison and writes the files.
func (o *options) publish(r *bench.Report, stdout io.Writer) error {
	_, _ = fmt.Fprintln(stdout)
	if err := r.WriteTable(stdout); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{
		"report.html": r.WriteHTML, "report.json": r.WriteJSON, "requests.jsonl": r.WriteRequests,
	} {
		f, err := os.Create(filepath.Join(o.out, name))
		if err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
		if err := errors.Join(write(f), f.Close()); err != nil {
			return err
		}
	}
	_, _ = fmt.Fprintf(stdout, "\nWritten to %s: report.html, report.json, and requests.jsonl with every request\n", o.out)
	return nil
}
