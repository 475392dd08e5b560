package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A load of the rows of costs: at a rate the process sleeps between requests; saturated it does not.
const (
	costsRate  = 200 // requests per second
	costsFlows = 16  // requests at once while saturated
)

// costs measures CPU time and context switches per request, through ext_proc and the proxy, of this build and of each
// other one (-beside), turn by turn.
func (b *bench) costs() error {
	builds := append([]string{""}, b.beside...)
	processes := make([]*process, len(builds))
	for i, build := range builds {
		p, err := b.childOf(build, "serve")
		if err != nil {
			return err
		}
		defer p.stop()
		processes[i] = p
	}
	if err := b.profiles(); err != nil {
		return err
	}
	for _, s := range []size{sizes[1], sizes[0]} {
		for _, way := range []string{"ext_proc", "proxy"} {
			for _, rate := range []int{costsRate, 0} {
				if err := b.compared(builds, processes, s, way, rate); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// profiles makes the directory for the profiles of rows.
func (b *bench) profiles() error {
	if b.profile == "" {
		return nil
	}
	return os.MkdirAll(b.profile, 0o755)
}

// profileRow begins a profile of the process for the time of a row, if profiles are wanted.
func (b *bench) profileRow(p *process, row string) {
	if b.profile == "" {
		return
	}
	go p.profileTo(filepath.Join(b.profile, strings.NewReplacer(", ", "-", "/", "", " ", "").Replace(row)+".prof"), b.length)
}

// compared measures one row for each build.
func (b *bench) compared(builds []string, processes []*process, s size, way string, rate int) error {
	load := fmt.Sprintf("%d/s", rate)
	if rate == 0 {
		load = "saturated"
	}
	name := fmt.Sprintf("%s, %d KB, %s", way, s.bytes>>10, load)
	best := make([]row, len(builds))
	for round := range rounds {
		for i, p := range processes {
			if i == 0 && round == 0 {
				b.profileRow(p, name)
			}
			r, err := b.cost(p, s, way, rate, round)
			if err != nil {
				return fmt.Errorf("%s of %q: %w", name, builds[i], err)
			}
			if round == 0 || r.Value < best[i].Value {
				best[i] = *r
			}
		}
	}
	for i, r := range best {
		r.Row, r.Unit = name, "ms CPU per request"
		if builds[i] != "" {
			r.Row += ", " + filepath.Base(builds[i])
		} else if len(best) > 1 {
			r.Beside["x"] = r.Value / best[1].Value
		}
		b.record(r)
	}
	return nil
}

// cost measures a load for the time of a row.
func (b *bench) cost(p *process, s size, way string, rate, round int) (*row, error) {
	one, end, err := sender(p, s, way)
	if err != nil {
		return nil, err
	}
	defer end()
	for i := range 4 * costsFlows { // connect, and get warm
		if err := one(1<<20 + i); err != nil {
			return nil, err
		}
	}
	var mu sync.Mutex
	var failed error
	var wait sync.WaitGroup
	send := func(i int) {
		if err := one(i); err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed = err
		}
	}
	n := round << 18
	first, cpu, switches, start := n, p.cpu(), p.switches(), time.Now()
	if rate > 0 {
		for until := first + int(b.length.Seconds()*float64(rate)); n < until; n++ {
			time.Sleep(time.Until(start.Add(time.Duration(n-first) * time.Second / time.Duration(rate))))
			wait.Go(func() { send(n) })
		}
	} else {
		for range costsFlows {
			wait.Go(func() {
				for time.Since(start) < b.length {
					mu.Lock()
					i := n
					n++
					mu.Unlock()
					send(i)
				}
			})
		}
	}
	wait.Wait()
	requests := float64(n - first)
	return &row{
		Value: (p.cpu() - cpu).Seconds() * 1000 / requests,
		Beside: map[string]float64{
			"perSecond": requests / time.Since(start).Seconds(), "switches": float64(p.switches()-switches) / requests,
		},
	}, failed
}

// sender returns a function that sends the i-th request and reads its answer.
func sender(p *process, s size, way string) (one func(i int) error, end func(), err error) {
	chats := conversations(s)
	if way == "ext_proc" {
		g, err := dial(p.addresses[0], true, 4)
		if err != nil {
			return nil, nil, err
		}
		return func(i int) error {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			stream, _, err := g.route(ctx, i, chats[i%len(chats)].turn(i))
			if err == nil {
				_, err = answer(stream, 2, 0)
			}
			return err
		}, g.close, nil
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	return func(i int) error {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://"+p.addresses[2]+"/v1/chat/completions",
			bytes.NewReader(chats[i%len(chats)].turn(i)))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(eventsHeader, "2")
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		if _, err = io.Copy(io.Discard, answer.Body); err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", answer.StatusCode)
		}
		return err
	}, client.CloseIdleConnections, nil
}

// switches is how often the threads of the process have been put to sleep, or lost their core to other work.
func (p *process) switches() (n int) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(raw)) {
			if name, value, _ := strings.Cut(line, ":"); strings.HasSuffix(name, "voluntary_ctxt_switches") {
				count, _ := strconv.Atoi(strings.TrimSpace(value))
				n += count
			}
		}
	}
	return n
}
