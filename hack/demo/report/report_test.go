package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/hack/demo/summary"
)

// made makes n samples with hits of the given part and times around a median.
func made(seed uint64, n int, hit float64, median time.Duration) []summary.Sample {
	random := rand.New(rand.NewPCG(seed, 9))
	out := make([]summary.Sample, n)
	for i := range out {
		prompt := 100 + random.IntN(20000)
		delivered := int(hit*float64(prompt)) / 16 * 16
		x := summary.Sample{
			Workload: summary.Trace, Sent: time.Duration(i) * 600 * time.Second / time.Duration(n),
			Pod:    []string{"pod-0", "pod-1", "pod-2", "pod-3", "pod-4", "pod-5", "pod-6", "pod-10"}[random.IntN(8)],
			Prompt: prompt, Routed: prompt, Answer: 300, Predicted: delivered, Confirmed: delivered * 9 / 10 / 16 * 16, Delivered: delivered,
			TTFT: time.Duration(float64(median) * math.Exp(random.NormFloat64())),
		}
		if i%3 == 0 {
			x.Workload = summary.Chat
		}
		out[i] = x
	}
	return out
}

// linear prefills 1,000 tokens a second.
func linear(tokens, cached int) time.Duration { return time.Duration(tokens-cached) * time.Millisecond }

func TestPrefillLoadIsWorkPerPodTime(t *testing.T) {
	samples := []summary.Sample{
		{Pod: "a", Prompt: 3000, Delivered: 1000, Sent: time.Second},
		{Pod: "b", Prompt: 1000, Delivered: 0, Sent: 2 * time.Second},
		{Err: "x", Prompt: 9000, Sent: 9 * time.Second},
	}
	if got := NewRun("x", []string{"a", "b"}, samples, linear, Machine{}).PrefillLoad; got != 0.75 {
		t.Errorf("3 s of work for 2 pods in 2 s is a load of %v, want 0.75", got)
	}
}

func testReport() *Report {
	m := Machine{WallSeconds: 62.3, MeanCPU: 0.46, MaxCPU: 0.66, PodsCPUSeconds: 31, PickerCPUSeconds: 11.2, ClientCPUSeconds: 9}
	pods := []string{"pod-0", "pod-1", "pod-2", "pod-3", "pod-4", "pod-5", "pod-6", "pod-10"}
	return &Report{
		Runs: []Run{
			NewRun("RoundRobin", pods, made(1, 3000, 0.09, 500*time.Millisecond), linear, m),
			NewRun("MarginalCost", pods, made(2, 3000, 0.24, 230*time.Millisecond), linear, m),
		},
		Config: Config{Pods: 8, Profile: "8b-h100", BlockTokens: 16, KVTokensPerPod: 400_000, SpeedUp: 10, StreamInterval: 16, TraceRate: 1.5,
			TraceRequests: 2000, TraceSeconds: 600, TraceSource: "somewhere", TraceLicence: "Apache-2.0", TraceCut: "A part.",
			ChatSessions: 60, ChatRequests: 1000, SystemWords: 1800, CPUs: 2, Platform: "linux/amd64", GoVersion: "go1"},
	}
}

func TestJSONHasTheDocumentedShape(t *testing.T) {
	var out bytes.Buffer
	if err := testReport().WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Runs []struct {
			Strategy          *string
			Requests, Errors  *int
			PredictedHitRatio *float64
			DeliveredHitRatio *float64
			TTFTSeconds       *struct{ P50, P90, P99 *float64 }
			RequestsPerPod    map[string]int
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{`"runs"`, `"strategy"`, `"requests"`, `"errors"`, `"predictedHitRatio"`, `"deliveredHitRatio"`, `"ttftSeconds"`,
		`"p50"`, `"p90"`, `"p99"`, `"requestsPerPod"`} {
		if !strings.Contains(out.String(), name+":") {
			t.Errorf("no field %s", name)
		}
	}
	if len(got.Runs) != 2 {
		t.Fatalf("%d runs", len(got.Runs))
	}
	for _, r := range got.Runs {
		if r.Strategy == nil || r.Requests == nil || r.Errors == nil || r.PredictedHitRatio == nil || r.DeliveredHitRatio == nil || r.TTFTSeconds == nil {
			t.Fatalf("a field is missing: %s", out.String())
		}
		if !(*r.TTFTSeconds.P50 > 0 && *r.TTFTSeconds.P50 < *r.TTFTSeconds.P90 && *r.TTFTSeconds.P90 < *r.TTFTSeconds.P99) {
			t.Errorf("percentiles are %v, %v, %v", *r.TTFTSeconds.P50, *r.TTFTSeconds.P90, *r.TTFTSeconds.P99)
		}
		sum := 0
		for _, n := range r.RequestsPerPod {
			sum += n
		}
		if sum != *r.Requests-*r.Errors {
			t.Errorf("pods served %d of %d requests", sum, *r.Requests)
		}
	}
}

func TestPodsWithoutRequestsAreShown(t *testing.T) {
	r := NewRun("x", []string{"pod-0", "idle"}, []summary.Sample{{Pod: "pod-0", Prompt: 1, Routed: 1}}, linear, Machine{})
	if n, ok := r.RequestsPerPod["idle"]; !ok || n != 0 {
		t.Errorf("requests per pod are %v", r.RequestsPerPod)
	}
}

func TestTableTellsEveryNumber(t *testing.T) {
	r := testReport()
	r.Runs[1].Machine.MeanCPU = 0.8
	var out strings.Builder
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	run := &r.Runs[1]
	for _, want := range []string{
		"RoundRobin", "MarginalCost", "  trace", "  chat", percent(run.PredictedHitRatio), percent(run.ConfirmedHitRatio),
		percent(run.SpeculativeHitRatio), percent(run.DeliveredHitRatio), seconds(run.TTFTSeconds.P50), seconds(run.TTFTSeconds.P99),
		"pod-0", "pod-10", "80 % busy in the mean (41 % by the demo)", "WARNING: The machine was too busy, in the mean with MarginalCost 80 % (41 % by the demo itself)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	if strings.Index(text, "pod-6") > strings.Index(text, "pod-10") {
		t.Error("pods are out of order")
	}
}

// parts of the page, checked as XML, which is stricter than a browser.
var svg = regexp.MustCompile(`(?s)<svg.*?</svg>`)

func TestPageIsWholeAndNeedsNothingElse(t *testing.T) {
	var out bytes.Buffer
	if err := testReport().WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	drawings := svg.FindAllString(out.String(), -1)
	if len(drawings) != 4 {
		t.Fatalf("%d charts", len(drawings))
	}
	for i, drawing := range drawings {
		if strings.Contains(drawing, "NaN") || strings.Contains(drawing, "Inf") {
			t.Errorf("chart %d has places that are no numbers", i)
		}
		in := xml.NewDecoder(strings.NewReader(drawing))
		for {
			if _, err := in.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("chart %d: %v", i, err)
			}
		}
	}
	for _, never := range []string{"<script", "src=", "@import", "url(", "<link", "href="} {
		if strings.Contains(out.String(), never) {
			t.Errorf("the page has %q", never)
		}
	}
}

func TestPageEscapesWhatItIsGiven(t *testing.T) {
	const bad = `<b onload="x">&'`
	r := testReport()
	r.Runs[0].Strategy, r.Config.TraceSource = bad, bad
	r.Runs[1].RequestsPerPod[bad] = 1
	r.Runs[1].Wrong = []string{bad}
	var out bytes.Buffer
	if err := r.WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "<b onload") || strings.Contains(out.String(), `="x"`) {
		t.Error("the page has an element that was a name")
	}
	if !strings.Contains(out.String(), "&lt;b onload") {
		t.Error("the page lacks the name")
	}
	if !strings.Contains(out.String(), "Failed checks") || strings.Contains(out.String(), "All checks passed") {
		t.Error("the page does not say that a check has failed")
	}
}

func TestPagesOfOddReportsAreWritten(t *testing.T) {
	failed := []summary.Sample{{Err: "x"}, {Err: "x"}}
	one := []summary.Sample{{Pod: "p", Prompt: 10, TTFT: time.Second}}
	for name, r := range map[string]*Report{
		"no runs":               {},
		"only failures":         {Runs: []Run{NewRun("a", nil, failed, linear, Machine{MeanCPU: -1})}},
		"one request":           {Runs: []Run{NewRun("a", nil, one, linear, Machine{})}},
		"nothing, then a bit":   {Runs: []Run{NewRun("a", nil, nil, linear, Machine{}), NewRun("b", nil, one, linear, Machine{})}},
		"four runs":             {Runs: []Run{NewRun("a", nil, one, linear, Machine{}), NewRun("b", nil, one, linear, Machine{}), NewRun("c", nil, nil, linear, Machine{}), NewRun("d", nil, nil, linear, Machine{})}},
		"three runs of one pod": {Runs: []Run{NewRun("a", nil, one, linear, Machine{}), NewRun("b", nil, one, linear, Machine{}), NewRun("c", nil, one, linear, Machine{})}},
	} {
		t.Run(name, func(t *testing.T) {
			var page, table, data bytes.Buffer
			for _, err := range []error{r.WriteHTML(&page), r.WriteTable(&table), r.WriteJSON(&data)} {
				if err != nil {
					t.Error(err)
				}
			}
			if strings.Contains(page.String(), "NaN") || strings.Contains(page.String(), "Inf") {
				t.Error("the page has numbers that are none")
			}
		})
	}
}

func TestTakeawaysSayWhichWayItPoints(t *testing.T) {
	better := testReport()
	worse := testReport()
	worse.Runs[0], worse.Runs[1] = worse.Runs[1], worse.Runs[0]
	same := testReport()
	same.Runs[1] = same.Runs[0]
	for name, tc := range map[string]struct {
		r    *Report
		hits string
		time string
	}{
		"better": {better, "times as much", "% less"},
		"worse":  {worse, ": less.", "% more"},
		"same":   {same, "1.00 times as much", ": the same."},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.r.Takeaways()
			if !strings.Contains(got[0], tc.hits) || !strings.Contains(got[1], tc.time) {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestTicksAreRoundAndCoverTheirRange(t *testing.T) {
	for high := 0.003; high < 1e6; high *= 1.37 {
		ticks := linearTicks(high, 5)
		if ticks[0] != 0 || ticks[len(ticks)-1] < high*(1-1e-9) || len(ticks) > 7 || len(ticks) < 2 {
			t.Fatalf("ticks up to %v are %v", high, ticks)
		}
		for low := high / 1000; low < high; low *= 3 {
			ticks := logTicks(low, high)
			if len(ticks) > 10 {
				t.Fatalf("%d ticks from %v to %v", len(ticks), low, high)
			}
			for i, v := range ticks {
				if v < low*(1-1e-6) || v > high*(1+1e-6) || i > 0 && v <= ticks[i-1] {
					t.Fatalf("ticks from %v to %v are %v", low, high, ticks)
				}
			}
		}
	}
}

func TestNumbersReadWell(t *testing.T) {
	for got, want := range map[string]string{
		grouped(0): "0", grouped(999): "999", grouped(1000): "1,000", grouped(1234567): "1,234,567", grouped(-4321): "-4,321",
		seconds(0.0804): "80 ms", seconds(0.9996): "1.00 s", seconds(9.96): "10.0 s", seconds(123.4): "123 s",
		percent(0.2345): "23.4 %", percent(0): "0.0 %", percent(0.0004): "0.04 %", percent(0.01): "1.0 %", atLeast(0.9996): "99.9 %", atLeast(1): "100.0 %", change(2, 1): "50 % less", change(1, 2): "100 % more", change(0, 1): "no comparison",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A reader sees first that times are worth less, and which strategy is the best of those that are compared with.
func TestTheTopSaysWhatTheRunIsWorth(t *testing.T) {
	r := testReport()
	r.Runs[1].Machine.MeanCPU, r.Runs[0].Machine.MaxLateSeconds = 0.8, 2
	var table, page strings.Builder
	if err := errors.Join(r.WriteTable(&table), r.WriteHTML(&page)); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(table.String(), "WARNING: The machine was too busy") {
		t.Errorf("the table begins with %q", table.String()[:60])
	}
	if !strings.Contains(table.String(), "WARNING: Requests were sent late, at most with RoundRobin 2.0 s.") {
		t.Errorf("no warning about requests that were sent late:\n%s", table.String())
	}
	if at := strings.Index(page.String(), "too busy"); at < 0 || at > strings.Index(page.String(), "<h1>") {
		t.Error("the page has no warning before its title")
	}
	r = testReport()
	if got := r.Warnings(); len(got) > 0 {
		t.Errorf("warnings of an idle machine: %q", got)
	}
}

func TestRunsAreComparedWithTheBestPossibleAndTheBestOther(t *testing.T) {
	r := testReport()
	samples := made(3, 3000, 0.5, 100*time.Millisecond)
	for i := range samples {
		samples[i].Held = samples[i].Prompt * 3 / 4
	}
	r.Runs = append(r.Runs, NewRun("Sticky", nil, samples, linear, Machine{}), r.Runs[1])
	r.Runs[3].Strategy, r.Runs[3].BestHitRatio = "Last", 2*r.Runs[3].DeliveredHitRatio
	if best := r.Runs[2].BestHitRatio; math.Abs(best-.75) > .001 {
		t.Errorf("the best possible is %v", best)
	}
	got := strings.Join(r.Takeaways(), "\n")
	for _, want := range []string{"Last found 50.0 % of that.", "Of the others, Sticky was best: it found 49.9 % in the caches, and nine of ten"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	r.Runs[2].TTFTSeconds.P90 = 100
	if got := r.Takeaways()[4]; !strings.HasPrefix(got, "Of the others, Sticky found most in the caches, 49.9 %, and ") || !strings.Contains(got, "and MarginalCost had") {
		t.Errorf("two are best: %q", got)
	}
}

// The longest name of a strategy has room left of its bar: 8.2 units for each letter is what the font of the README's picture takes.
func TestNamesOfStrategiesAreNotClipped(t *testing.T) {
	r := testReport()
	for _, name := range []string{"Sticky", "ApproximatePrefix", "MarginalCost"} {
		r.Runs = append(r.Runs, r.Runs[1])
		r.Runs[len(r.Runs)-1].Strategy = name
	}
	labels := regexp.MustCompile(`<text x="([0-9.]+)" y="[0-9.]+" class="name" text-anchor="end">(\w+)<`).FindAllStringSubmatch(r.hits(), -1)
	if len(labels) != len(r.Runs) {
		t.Fatalf("%d names for %d runs", len(labels), len(r.Runs))
	}
	for _, label := range labels {
		if end, err := strconv.ParseFloat(label[1], 64); err != nil || end < 8.2*float64(len(label[2])) {
			t.Errorf("%s ends at %s: its beginning is cut off", label[2], label[1])
		}
	}
}
