package real

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvasir-dev/kvasir/test/real/vllmcpu"
)

// The goals over all requests of a run, and over those under eviction.
const (
	goalExact             = 99.5 // % of requests with an exact prediction
	goalDeviation         = 0.2  // % of prompt tokens, of |predicted - delivered|
	goalEvictionExact     = 99.0
	goalEvictionDeviation = 0.3
)

// known.txt lists cases that fail for a reason: TEST-NAME, blanks, the reason. A name with a question mark behind it fails
// at times only.
//
//go:embed known.txt
var knownText string

// known returns the known reason for a case's failure, or "", and whether it fails each time.
func known(name string) (reason string, always bool) {
	for line := range strings.Lines(knownText) {
		fields := strings.Fields(line)
		if len(fields) > 1 && (fields[0] == name || fields[0] == name+"?") {
			return strings.Join(fields[1:], " "), fields[0] == name
		}
	}
	return "", false
}

// verdict judges a case: err fails it, unless known.txt lists the test. A listed test without a failure fails as well,
// unless the list allows it to pass at times: it must leave the list.
func verdict(t *testing.T, err error) {
	t.Helper()
	reason, always := known(t.Name())
	if reason == "" {
		if err != nil {
			t.Error(err)
		}
		return
	}
	run.totals.mu.Lock()
	defer run.totals.mu.Unlock()
	if run.totals.failedAsKnown == nil {
		run.totals.failedAsKnown = map[string]bool{}
	}
	name := t.Name()
	if _, seen := run.totals.failedAsKnown[name]; !seen && always {
		t.Cleanup(func() {
			if !run.totals.failedAsKnown[name] && !t.Failed() && !t.Skipped() {
				t.Errorf("the case passes: remove it from known.txt (%s)", reason)
			}
		})
	}
	run.totals.failedAsKnown[name] = run.totals.failedAsKnown[name] || err != nil
	if err != nil {
		t.Logf("known fault, %s: %v", reason, err)
	}
}

// stop ends a case that cannot go on: it fails, or is skipped if known.txt lists it.
func stop(t *testing.T, err error) {
	t.Helper()
	if reason, _ := known(t.Name()); reason != "" {
		t.Skipf("known fault, %s: %v", reason, err)
	}
	t.Fatal(err)
}

// totals count the answers of a run.
type totals struct {
	mu            sync.Mutex
	shapes        map[string]*tally
	failedAsKnown map[string]bool
	passed        map[string]bool // cases that were run as a whole and passed, of those that call pass
	notRun        []string        // cases with the reason, in order
	late          int             // cases that the budget left out
}

// mostLate is how many cases the budget of a run can leave out where the run is required: such a run must have judged the others.
const mostLate = 2

// enoughRun returns an error if a required run has left out too much.
func (s *totals) enoughRun(required bool) error {
	if required && s.late > mostLate {
		return fmt.Errorf("the budget of the run has left out %d cases, at most %d may be", s.late, mostLate)
	}
	return nil
}

// pass records at the end of a test that all of it was run and passed.
func pass(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		run.totals.mu.Lock()
		defer run.totals.mu.Unlock()
		if run.totals.passed == nil {
			run.totals.passed = map[string]bool{}
		}
		run.totals.passed[t.Name()] = !t.Failed() && !t.Skipped()
	})
}

// figureCases are the tests whose requests the figures of the table in docs/install-vllm.md are about.
var figureCases = []string{"TestRequestShapes", "TestEvictionIsFollowed"}

// figures are what a row of the table says of predictions: of requests of every shape, and of all requests under eviction,
// those included whose blocks were evicted after the picker could have known of it. It fails unless this run has them.
func (s *totals) figures() (string, error) {
	for _, name := range figureCases {
		if !s.passed[name] {
			return "", fmt.Errorf("no row is written: %s has not passed as a whole in this run", name)
		}
	}
	exact, deviation := s.sum(counted).percent()
	raw, rawDeviation := s.sum(func(shape string) bool { return underEviction(shape) || strings.HasPrefix(shape, evictedMeanwhile) }).percent()
	return fmt.Sprintf("%.1f %% | %.2f %% | %.1f %% | %.2f %% |", exact, deviation, raw, rawDeviation), nil
}

// counted reports whether the goals outside eviction hold for a shape.
func counted(shape string) bool {
	return !underEviction(shape) && !strings.HasPrefix(shape, evictedMeanwhile) && !strings.HasPrefix(shape, "known")
}

// leaveOut skips a case and lists it at the end of the run, where a reader of the verdict sees it.
func leaveOut(t *testing.T, reason string) {
	t.Helper()
	notRun(t, reason)
	t.Skip(reason)
}

// notRun lists a part of a case that goes on without it.
func notRun(t *testing.T, reason string) {
	t.Helper()
	line := t.Name() + ": " + reason
	run.totals.mu.Lock()
	defer run.totals.mu.Unlock()
	if !slices.Contains(run.totals.notRun, line) {
		run.totals.notRun = append(run.totals.notRun, line)
	}
}

// pausesSince is the oldest release whose row in docs/install-vllm.md has /pause and /sleep.
const pausesSince = "0.14"

// refuses ends a case because the engine does not do what a route is for. A release that is known to have the route fails.
func refuses(t *testing.T, path string, status int, body string) {
	t.Helper()
	message := fmt.Sprintf("vLLM %s answers %s with %d: %.300s", run.release, path, status, body)
	if atLeast(pausesSince) {
		stop(t, errors.New(message))
	}
	t.Skip(message)
}

// listNotRun says what the run has left out.
func (s *totals) listNotRun(w io.Writer) {
	for _, line := range s.notRun {
		_, _ = fmt.Fprintln(w, "NOT RUN:", line)
	}
}

// tally counts answers of one shape.
type tally struct {
	requests, exact   int
	prompt, deviation int
	over, under       int
}

// add counts an answer that said what was delivered. Requests of a shape that begins with "-" are not counted.
func (s *totals) add(a answer, files bool) {
	if a.delivered < 0 || strings.HasPrefix(a.request.shape, "-") {
		return
	}
	name := nameInTotals(a.request.shape, files)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shapes == nil {
		s.shapes = map[string]*tally{}
	}
	if s.shapes[name] == nil {
		s.shapes[name] = &tally{}
	}
	c := s.shapes[name]
	c.requests++
	c.prompt += max(a.promptEngine, 0)
	c.over += max(a.predicted-a.delivered, 0)
	c.under += max(a.delivered-a.predicted, 0)
	c.deviation = c.over + c.under
	if a.predicted == a.delivered {
		c.exact++
	}
}

func (c tally) percent() (exact, deviation float64) {
	return 100 * float64(c.exact) / float64(max(c.requests, 1)), 100 * float64(c.deviation) / float64(max(c.prompt, 1))
}

// sum of the shapes that a function accepts.
func (s *totals) sum(accept func(shape string) bool) tally {
	var all tally
	for name, c := range s.shapes {
		if accept(name) {
			all.requests += c.requests
			all.exact += c.exact
			all.prompt += c.prompt
			all.deviation += c.deviation
			all.over += c.over
			all.under += c.under
		}
	}
	return all
}

// print shows the totals and returns the exit status of the run: 1 if they miss the goals.
func (s *totals) print() (status int) {
	s.listNotRun(os.Stdout)
	if err := s.enoughRun(os.Getenv(requiredVariable) != ""); err != nil {
		fmt.Println("FAIL:", err)
		status = 1
	}
	if *updateFlag && errors.Is(run.missing, vllmcpu.ErrUnloadable) {
		row, figures := unloadableRow(run.release, run.missing)
		if err := putRow(tablePage, row, figures); err != nil {
			fmt.Println("FAIL:", err)
			return 1
		}
	}
	if len(s.shapes) == 0 {
		return status
	}
	fmt.Printf("Predicted and delivered on vLLM %s:\n%-44s %8s %8s %9s %9s %9s\n", run.release, "shape", "requests", "exact", "tokens", "over", "under")
	line := func(name string, c tally) {
		exact, deviation := c.percent()
		fmt.Printf("%-44s %8d %7.1f%% %9d %9d %9d  %.3f%%\n", name, c.requests, exact, c.prompt, c.over, c.under, deviation)
	}
	for _, name := range slices.Sorted(maps.Keys(s.shapes)) {
		line(name, *s.shapes[name])
	}
	eviction := s.sum(underEviction)
	rest := s.sum(counted)
	line("all under eviction", eviction)
	line("all others", rest)
	if *updateFlag && run.capabilities.release != "" {
		if err := updatePage(tablePage, run.capabilities, s); err != nil {
			fmt.Println("FAIL:", err)
			return 1
		}
	}
	return max(status, judge("under eviction", eviction, goalEvictionExact, goalEvictionDeviation), judge("otherwise", rest, goalExact, goalDeviation))
}

// within returns nil if the answers of a shape are within goals.
func (s *totals) within(shape string, files bool, goalExact, goalDeviation float64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.shapes[nameInTotals(shape, files)]
	if c == nil {
		return fmt.Errorf("no answer of shape %q was counted", shape)
	}
	if exact, deviation := c.percent(); exact < goalExact || deviation > goalDeviation {
		return fmt.Errorf("%.2f%% of %d requests are exact (goal %v%%), %.3f%% of %d prompt tokens deviate (goal %v%%): %d too many, %d too few",
			exact, c.requests, goalExact, deviation, c.prompt, goalDeviation, c.over, c.under)
	}
	return nil
}

func nameInTotals(shape string, files bool) string {
	if files {
		return shape + " (in process)"
	}
	return shape
}

// evictedMeanwhile is the shape of requests whose blocks were evicted after the picker could have known of it: no goal counts them.
const evictedMeanwhile = "evicted meanwhile"

func underEviction(shape string) bool { return strings.HasPrefix(shape, "eviction") }

func judge(what string, c tally, goalExact, goalDeviation float64) int {
	exact, deviation := c.percent()
	if c.requests == 0 || exact >= goalExact && deviation <= goalDeviation {
		return 0
	}
	fmt.Printf("FAIL: %s %.2f%% of requests are exact (goal %v%%) and %.3f%% of prompt tokens deviate (goal %v%%).\n",
		what, exact, goalExact, deviation, goalDeviation)
	return 1
}
