package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Takeaways are the summary sentences of a report: what the last run did, compared with the first where there are several,
// and how right the predictions were. They state the measurements, favourable or not.
func (r *Report) Takeaways() []string {
	if len(r.Runs) == 0 {
		return nil
	}
	base, last := &r.Runs[0], &r.Runs[len(r.Runs)-1]
	out := []string{hitSentence(base, last), timeSentence(base, last), bestSentence(last), predictionSentence(r.Runs)}
	if len(r.Runs) > 2 {
		out = append(out, othersSentence(r.Runs[:len(r.Runs)-1]))
	}
	if len(r.Runs) == 1 {
		out[0] = fmt.Sprintf("With %s the engines found %s of all prompt tokens in their caches.", base.Strategy, percent(base.DeliveredHitRatio))
		out[1] = fmt.Sprintf("Half of the requests had their first token within %s, 90 %% within %s.",
			seconds(base.TTFTSeconds.P50), seconds(base.TTFTSeconds.P90))
	}
	return out
}

func hitSentence(base, last *Run) string {
	s := fmt.Sprintf("With %s the engines found %s of all prompt tokens in their caches, with %s %s",
		last.Strategy, percent(last.DeliveredHitRatio), base.Strategy, percent(base.DeliveredHitRatio))
	switch {
	case base.DeliveredHitRatio <= 0:
		return s + "."
	case last.DeliveredHitRatio >= base.DeliveredHitRatio:
		return s + fmt.Sprintf(": %s times as much.", short(last.DeliveredHitRatio/base.DeliveredHitRatio))
	}
	return s + ": less."
}

// bestSentence compares a run with what no strategy can exceed.
func bestSentence(run *Run) string {
	return fmt.Sprintf("A cache without bounds that all pods share would hold %s of the prompt tokens; %s found %s of that.",
		percent(run.BestHitRatio), run.Strategy, percent(part(run)))
}

// othersSentence names the best of the strategies that the last one is compared with.
func othersSentence(runs []Run) string {
	most, first := &runs[0], &runs[0]
	for i := range runs {
		if runs[i].DeliveredHitRatio > most.DeliveredHitRatio {
			most = &runs[i]
		}
		if runs[i].TTFTSeconds.P90 < first.TTFTSeconds.P90 {
			first = &runs[i]
		}
	}
	if most == first {
		return fmt.Sprintf("Of the others, %s was best: it found %s in the caches, and nine of ten first tokens came within %s.",
			most.Strategy, percent(most.DeliveredHitRatio), seconds(most.TTFTSeconds.P90))
	}
	return fmt.Sprintf("Of the others, %s found most in the caches, %s, and %s had nine of ten first tokens earliest, within %s.",
		most.Strategy, percent(most.DeliveredHitRatio), first.Strategy, seconds(first.TTFTSeconds.P90))
}

func timeSentence(base, last *Run) string {
	return fmt.Sprintf("Nine of ten requests had their first token within %s with %s, within %s with %s: %s.",
		seconds(last.TTFTSeconds.P90), last.Strategy, seconds(base.TTFTSeconds.P90), base.Strategy,
		change(base.TTFTSeconds.P90, last.TTFTSeconds.P90))
}

func predictionSentence(runs []Run) string {
	worst, exact := 0.0, 1.0
	for i := range runs {
		worst, exact = math.Max(worst, runs[i].TotalDeviation), math.Min(exact, runs[i].ExactRatio)
	}
	return fmt.Sprintf("What the picker predicted and what the engines delivered differ by at most %.2f %% in total; at least %s of the predictions were right to the token.",
		100*worst, atLeast(exact))
}

// change compares b with a, in percent of a.
func change(a, b float64) string {
	if a <= 0 {
		return "no comparison"
	}
	c := math.Round(100 * (b - a) / a)
	switch {
	case c < 0:
		return fmt.Sprintf("%.0f %% less", -c)
	case c > 0:
		return fmt.Sprintf("%.0f %% more", c)
	}
	return "the same"
}

// percent of a ratio, with one decimal, two if it is small.
func percent(ratio float64) string {
	if ratio > 0 && ratio < 0.00995 {
		return fmt.Sprintf("%.2f %%", 100*ratio)
	}
	return fmt.Sprintf("%.1f %%", 100*ratio)
}

// atLeast is a percentage that is not rounded up: 100 % means all.
func atLeast(ratio float64) string { return fmt.Sprintf("%.1f %%", math.Floor(1000*ratio+1e-9)/10) }

// seconds with a sensible number of digits.
func seconds(s float64) string {
	switch {
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", 1000*s)
	case s < 99.95:
		return short(s) + " s"
	}
	return fmt.Sprintf("%.0f s", s)
}

// short is a number with about two digits that matter.
func short(x float64) string {
	if x < 9.95 {
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.1f", x)
}

// grouped is a number with its thousands set apart.
func grouped(n int) string {
	s := strconv.Itoa(n)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	var parts []string
	for len(s) > 3 {
		parts = append([]string{s[len(s)-3:]}, parts...)
		s = s[:len(s)-3]
	}
	return sign + strings.Join(append([]string{s}, parts...), ",")
}

// parameters are the configuration in words and figures.
func (r *Report) parameters() [][2]string {
	c := &r.Config
	return [][2]string{
		{"Pods", fmt.Sprintf("%d simulated engines, time model %s, %s tokens of KV cache each in blocks of %d, least recently used evicted first",
			c.Pods, c.Profile, grouped(c.KVTokensPerPod), c.BlockTokens)},
		{"Trace", fmt.Sprintf("%s requests in %.0f s, arriving %s, as token ids through /v1/completions",
			grouped(c.TraceRequests), c.TraceSeconds, pace(c.TraceRate))},
		{"Chat", fmt.Sprintf("%s requests of %d sessions with one system prompt of %s words, as text through /v1/chat/completions; the next turn after the answer and a pause",
			grouped(c.ChatRequests), c.ChatSessions, grouped(c.SystemWords))},
		{"Load", r.loads()},
		{"Time", fmt.Sprintf("the engines run %g times as fast as their model; times are the model's, measured by the client and multiplied: a millisecond that picker, proxy and sockets take counts as %g",
			c.SpeedUp, c.SpeedUp)},
		{"Streaming", fmt.Sprintf("an event for every %d tokens after the first", c.StreamInterval)},
		{"Each run", "fresh pods and a fresh picker: all caches are empty at the start"},
		{"Machine", fmt.Sprintf("%d CPUs, %s, %s", c.CPUs, c.Platform, c.GoVersion)},
	}
}

// pace of a trace's arrivals in words.
func pace(rate float64) string {
	if rate == 1 {
		return "at the pace recorded"
	}
	return fmt.Sprintf("%g times as fast as recorded", rate)
}

// loads are the runs' loads in words.
func (r *Report) loads() string {
	var parts []string
	for i := range r.Runs {
		parts = append(parts, fmt.Sprintf("%.0f %% with %s", 100*r.Runs[i].PrefillLoad, r.Runs[i].Strategy))
	}
	return "prefills alone, one by one, would take " + strings.Join(parts, ", ") + " of the pods' time; decoding comes on top"
}
