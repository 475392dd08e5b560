package config

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/policy"
)

// follow runs Follow until the test ends. The poll is so rare that only notifications count.
func follow(t *testing.T, d *Directory) *states {
	t.Helper()
	s := &states{news: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Follow(ctx, s.take)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

// until waits for a state that is as wanted.
func (s *states) until(t *testing.T, what string, ok func(State) bool) State {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		last, n := s.last, s.n
		s.mu.Unlock()
		if n > 0 && ok(last) {
			return last
		}
		select {
		case <-s.news:
		case <-deadline:
			t.Fatalf("never: %s; problems %v", what, last.Problems)
		}
	}
}

func strategyIs(want policy.Type) func(State) bool {
	return func(s State) bool { return len(s.Specs) == 1 && s.Specs[0].Policy.Strategy.Type == want }
}

func TestFollowTellsOfEveryKindOfChange(t *testing.T) {
	d := open(t, "pool.yaml", smallPool)
	d.poll = time.Hour
	s := follow(t, d)
	s.until(t, "the first state", strategyIs(policy.MarginalCost))

	write(t, d.file("policy.yaml"), smallPolicy)
	s.until(t, "a file that is new", strategyIs(policy.LeastLoad))
	if err := os.WriteFile(d.file("policy.yaml"), []byte(strings.Replace(smallPolicy, "LeastLoad", "Random", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.until(t, "a file that is written in place", strategyIs(policy.Random))
	write(t, d.file("policy.yaml"), "kind: [")
	s.until(t, "a broken file", func(s State) bool { return len(s.Problems) == 1 && strategyIs(policy.Random)(s) })
	if err := os.Rename(d.file("policy.yaml"), d.file("policy.txt")); err != nil {
		t.Fatal(err)
	}
	s.until(t, "a file that is gone", func(s State) bool { return len(s.Problems) == 0 && strategyIs(policy.MarginalCost)(s) })
}

func TestFollowSurvivesThatTheDirectoryIsReplaced(t *testing.T) {
	parent := t.TempDir()
	place := filepath.Join(parent, "objects")
	fill := func(dir, strategy string) {
		t.Helper()
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "pool.yaml"), smallPool)
		write(t, filepath.Join(dir, "policy.yaml"), strings.Replace(smallPolicy, "LeastLoad", strategy, 1))
	}
	fill(place, "LeastLoad")
	d := openAt(t, place)
	d.poll = time.Hour
	s := follow(t, d)
	s.until(t, "the first state", strategyIs(policy.LeastLoad))

	fill(filepath.Join(parent, "next"), "Random")
	if err := os.Rename(place, filepath.Join(parent, "before")); err != nil {
		t.Fatal(err)
	}
	s.until(t, "the directory is gone", func(s State) bool { return len(s.Problems) == 1 && strategyIs(policy.LeastLoad)(s) })
	if err := os.Rename(filepath.Join(parent, "next"), place); err != nil {
		t.Fatal(err)
	}
	s.until(t, "another directory is there", func(s State) bool { return len(s.Problems) == 0 && strategyIs(policy.Random)(s) })
	write(t, d.file("policy.yaml"), strings.Replace(smallPolicy, "LeastLoad", "RoundRobin", 1))
	s.until(t, "a change in the other directory", strategyIs(policy.RoundRobin))
}

func TestFollowReadsMountedVolumes(t *testing.T) {
	dir := t.TempDir()
	version := func(name, strategy string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "all.yaml"), smallPool+"---\n"+strings.Replace(smallPolicy, "LeastLoad", strategy, 1))
		if err := os.Symlink(name, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", "LeastLoad")
	if err := os.Symlink(filepath.Join("..data", "all.yaml"), filepath.Join(dir, "all.yaml")); err != nil {
		t.Fatal(err)
	}
	d := openAt(t, dir)
	d.poll = time.Hour
	s := follow(t, d)
	s.until(t, "the first state", strategyIs(policy.LeastLoad))
	version("..2", "Random")
	s.until(t, "the volume is updated", strategyIs(policy.Random))
}

func TestFollowComparesWhatIsNotNotified(t *testing.T) {
	d, elsewhere := open(t, "pool.yaml", smallPool), filepath.Join(t.TempDir(), "policy.yaml")
	write(t, elsewhere, smallPolicy)
	if err := os.Symlink(elsewhere, d.file("policy.yaml")); err != nil {
		t.Fatal(err)
	}
	d.poll = 10 * time.Millisecond
	s := follow(t, d)
	s.until(t, "the first state", strategyIs(policy.LeastLoad))
	write(t, elsewhere, strings.Replace(smallPolicy, "LeastLoad", "Random", 1))
	s.until(t, "a change behind a link", strategyIs(policy.Random))
}
