package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvasir-dev/kvasir/test/envoyfront"
)

// way is a way of requests through an Envoy of its own: without ext_proc, with a picker that does nothing, or with ours.
type way struct {
	name    string
	picker  *process // nil for none
	envoy   *process
	address string // where Envoy listens
}

// envoyRates are the rates of requests per second; 0 for as many as 16 clients get.
var envoyRates = []int{50, 200, 400, 0}

// throughEnvoy measures what a request costs Envoy and the picker, turn by turn, beside a picker that does nothing and
// beside no picker at all.
func (b *bench) throughEnvoy() error {
	ours, err := b.child("serve")
	if err != nil {
		return err
	}
	defer ours.stop()
	empty, err := b.child("reverse")
	if err != nil {
		return err
	}
	defer empty.stop()
	if err := b.profiles(); err != nil {
		return err
	}
	ways := []*way{{name: "none"}, {name: "empty", picker: empty}, {name: "kvasir", picker: ours}}
	for i, at := range []string{"", empty.addresses[1], ours.addresses[0]} {
		if err := ways[i].start(b, at); err != nil {
			return err
		}
		defer ways[i].envoy.stop()
	}
	for _, s := range sizes {
		for _, rate := range envoyRates {
			name := fmt.Sprintf("Envoy, %d KB at %d/s", s.bytes>>10, rate)
			if rate == 0 {
				name = fmt.Sprintf("Envoy, %d KB, saturated", s.bytes>>10)
			}
			if !strings.Contains(name, b.rows) {
				continue
			}
			r := row{Row: name, Unit: "x the CPU of a picker that does nothing", Beside: map[string]float64{}}
			for round := range rounds { // the least disturbed one, each figure for itself
				for _, w := range ways {
					if round == 0 && w.picker == ours {
						b.profileRow(ours, name)
					}
					if err := w.measure(r.Beside, s, rate, b.length); err != nil {
						return fmt.Errorf("%s, %s: %w", name, w.name, err)
					}
				}
			}
			r.Value = r.Beside["kvasirPickerMsCPU"] / r.Beside["emptyPickerMsCPU"]
			b.record(r)
		}
	}
	return nil
}

// start starts an Envoy that asks the picker at an address, if there is one.
func (w *way) start(b *bench, picker string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // for its port alone
	if err != nil {
		return err
	}
	w.address = l.Addr().String()
	_ = l.Close()
	config, err := envoyfront.Config(w.address, picker, "127.0.1.1:"+b.engine.port)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-envoy-")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return err
	}
	w.envoy = &process{cmd: exec.Command(b.envoy, "-c", file, "--use-dynamic-base-id", //nolint:noctx // given
		"--concurrency", "1", "--log-level", "error")}
	w.envoy.cmd.Stderr = os.Stderr
	if err := w.envoy.cmd.Start(); err != nil {
		return err
	}
	client := &http.Client{}
	body := conversations(sizes[1])[0].turn(1)
	for range 200 {
		if err = w.chat(client, body); err == nil {
			return os.RemoveAll(dir)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("asking through Envoy: %w", err)
}

// measure sends requests at a rate for a time, and keeps each figure that is the smallest so far.
func (w *way) measure(least map[string]float64, s size, rate int, length time.Duration) error {
	transport := &http.Transport{MaxIdleConnsPerHost: 128}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	atOnce := 128 // beyond it the rate falls, rather than a queue grow
	if rate == 0 {
		atOnce = 16
	}
	chats := conversations(s)
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var wait sync.WaitGroup
	room := make(chan bool, atOnce)
	one := func(i int) {
		defer func() { <-room; wait.Done() }()
		start := time.Now()
		err := w.chat(client, chats[i%len(chats)].turn(i))
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(start))
		if failed == nil {
			failed = err
		}
	}
	for i := range 50 { // connect, and get warm
		wait.Add(1)
		room <- true
		go one(i + 1<<20)
	}
	wait.Wait()
	took = nil
	envoy, picker, start := w.envoy.cpu(), w.used(), time.Now()
	n := 0
	for ; time.Since(start) < length; n++ {
		if rate > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		}
		wait.Add(1)
		room <- true
		go one(n)
	}
	wait.Wait()
	if failed != nil {
		return failed
	}
	slices.Sort(took)
	keep := func(name string, value float64) {
		if was, ok := least[w.name+name]; !ok || value < was {
			least[w.name+name] = value
		}
	}
	keep("EnvoyMsCPU", (w.envoy.cpu()-envoy).Seconds()*1000/float64(n))
	keep("PickerMsCPU", (w.used()-picker).Seconds()*1000/float64(n))
	keep("P50ms", ms(took[n/2]))
	keep("P99ms", ms(took[n*99/100]))
	keep("MsBetween", time.Since(start).Seconds()*1000/float64(n))
	return nil
}

func (w *way) used() time.Duration {
	if w.picker == nil {
		return 0
	}
	return w.picker.cpu()
}

// chat sends a chat, whose answer has two events.
func (w *way) chat(client *http.Client, body []byte) error {
	request, err := http.NewRequest(http.MethodPost, "http://"+w.address+"/v1/chat/completions", bytes.NewReader(body)) //nolint:noctx // ends
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(eventsHeader, "2")
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", answer.StatusCode)
	}
	return err
}
