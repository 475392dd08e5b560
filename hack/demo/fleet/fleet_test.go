//go:build unix

package fleet

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testTimeout is for processes that end at once or never.
const testTimeout = 300 * time.Millisecond

// shell starts a script as a child that a test ends.
func shell(t *testing.T, died chan<- *Process, name, script string) *Process {
	t.Helper()
	p, err := start(died, name, t.TempDir(), "/bin/sh", nil, "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = stop([]*Process{p}, testTimeout) })
	return p
}

// said waits until a process has printed a word.
func said(t *testing.T, p *Process, word string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Await(ctx, word, func(context.Context) bool { return strings.Contains(p.lastWords(), word) }); err != nil {
		t.Fatal(err)
	}
}

// leash returns the beginning of a script, and a function that waits until nothing that the script started is left:
// all of it holds the writing end of a pipe.
func leash(t *testing.T) (script string, gone func()) {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() {
		f, err := os.Open(pipe)
		if err == nil {
			_, err = io.Copy(io.Discard, f)
			err = errors.Join(err, f.Close())
		}
		end <- err
	}()
	return "exec 3>" + pipe + "; ", func() {
		t.Helper()
		select {
		case err := <-end:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("something is left of what was stopped")
		}
	}
}

func TestStopEndsWholeGroups(t *testing.T) {
	died := make(chan *Process, 3)
	for name, script := range map[string]string{
		"one that ends when told":     "echo up; exec sleep 1000",
		"one with a child of its own": "sleep 1000 & echo up; wait",
		"one that leaves a child":     `sh -c 'trap "" TERM; echo up; while :; do sleep 1; done' & wait`,
	} {
		t.Run(name, func(t *testing.T) {
			tied, gone := leash(t)
			p := shell(t, died, "child", tied+script)
			said(t, p, "up")
			if _, err := stop([]*Process{p}, testTimeout); err != nil {
				t.Error(err)
			}
			gone()
		})
	}
}

func TestStopKillsWhatWillNotEnd(t *testing.T) {
	died := make(chan *Process, 2)
	tied, gone := leash(t)
	stubborn := shell(t, died, "stubborn", tied+`trap "" TERM; echo up; while :; do sleep 1; done`)
	tiedToo, goneToo := leash(t)
	other := shell(t, died, "other", tiedToo+"echo up; exec sleep 1000")
	said(t, stubborn, "up")
	said(t, other, "up")
	if _, err := stop([]*Process{stubborn, other}, testTimeout); err != nil {
		t.Error(err)
	}
	gone()
	goneToo()
}

func TestADeadProcessIsReportedWithItsLastWords(t *testing.T) {
	died := make(chan *Process, 1)
	f := &Fleet{died: died}
	shell(t, died, "pod-3", "echo the port is taken >&2; exit 7")
	err := f.Watch(context.Background())
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"pod-3", "exit status 7", "the port is taken"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.Watch(ctx); err != nil {
		t.Errorf("a watch that is ended fails with %v", err)
	}
}

func TestLastWordsAreBounded(t *testing.T) {
	died := make(chan *Process, 1)
	p := shell(t, died, "loud", "i=0; while [ $i -lt 1000 ]; do echo line number $i; i=$((i+1)); done; echo the end")
	<-p.done
	if words := p.lastWords(); len(words) > quotedOutput || !strings.HasSuffix(words, "the end") {
		t.Errorf("%d bytes, ending in %q", len(words), words[max(0, len(words)-20):])
	}
}

func TestAFleetThatCannotStartLeavesNothing(t *testing.T) {
	bin := t.TempDir()
	pid := filepath.Join(bin, "pid")
	script := "#!/bin/sh\necho $$ >> " + pid + "\necho no such flag >&2\nexit 3\n"
	if err := os.WriteFile(filepath.Join(bin, "vllmsim"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(context.Background(), Options{Bin: bin, Dir: t.TempDir(), Pods: 3, Strategy: "RoundRobin", SpeedUp: 1})
	if err == nil || !strings.Contains(err.Error(), "no such flag") {
		t.Errorf("error is %v", err)
	}
	if _, err := Start(context.Background(), Options{Bin: filepath.Join(bin, "none"), Dir: t.TempDir(), Pods: 1}); err == nil {
		t.Error("a program that does not exist was started")
	}
}

func TestObjectsAreThoseOfTheGoldenFile(t *testing.T) {
	dir := t.TempDir()
	err := writeObjects(dir, &Options{Strategy: "LeastLoad"}, []string{"pod-0", "pod-1"}, []Ports{{HTTP: 1, Events: 2, Replay: 3}, {HTTP: 4, Events: 5, Replay: 6}})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, name := range []string{"pool.yaml", "policy.yaml", "pods.yaml"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString("# " + name + "\n" + string(text))
	}
	golden := filepath.Join("testdata", "objects.yaml")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Error(diff)
	}
}
