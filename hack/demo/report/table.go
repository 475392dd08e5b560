package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// WriteTable writes the report for a terminal.
func (r *Report) WriteTable(w io.Writer) error {
	rows := [][]string{{"STRATEGY", "REQUESTS", "ERRORS", "PREDICTED", "= CONFIRMED", "+ SPECULATIVE", "DELIVERED", "TTFT P50", "P90", "P99"}}
	for i := range r.Runs {
		x := &r.Runs[i]
		rows = append(rows, []string{
			x.Strategy, strconv.Itoa(x.Requests), strconv.Itoa(x.Errors),
			percent(x.PredictedHitRatio), percent(x.ConfirmedHitRatio), percent(x.SpeculativeHitRatio), percent(x.DeliveredHitRatio),
			seconds(x.TTFTSeconds.P50), seconds(x.TTFTSeconds.P90), seconds(x.TTFTSeconds.P99),
		})
		for _, part := range x.Workloads {
			rows = append(rows, []string{
				"  " + part.Name, strconv.Itoa(part.Requests), "", percent(part.PredictedHitRatio), "", "", percent(part.DeliveredHitRatio),
				seconds(part.TTFTSeconds.P50), seconds(part.TTFTSeconds.P90), seconds(part.TTFTSeconds.P99),
			})
		}
	}
	var b strings.Builder
	for _, warning := range r.Warnings() {
		b.WriteString("WARNING: " + warning + "\n")
	}
	writeColumns(&b, rows)
	b.WriteString("\nRequests per pod\n")
	pods := r.pods()
	rows = [][]string{append([]string{""}, pods...)}
	for i := range r.Runs {
		row := []string{r.Runs[i].Strategy}
		for _, pod := range pods {
			row = append(row, strconv.Itoa(r.Runs[i].RequestsPerPod[pod]))
		}
		rows = append(rows, row)
	}
	writeColumns(&b, rows)
	b.WriteString("\nHits are parts of the prompt tokens; TTFT is in the engines' model time.\n")
	for i := range r.Runs {
		x, m := &r.Runs[i], &r.Runs[i].Machine
		fmt.Fprintf(&b, "%s: predicted and delivered differ by %.2f %% in total, %.2f %% of the prompt tokens request by request, %s exact.\n",
			x.Strategy, 100*x.TotalDeviation, 100*x.RequestDeviation, atLeast(x.ExactRatio))
		fmt.Fprintf(&b, "%s  %.0f s, prefill load %.0f %%, %s\n", strings.Repeat(" ", len(x.Strategy)), m.WallSeconds, 100*x.PrefillLoad,
			r.machineUse(m))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// machineUse describes how busy a run kept the machine.
func (r *Report) machineUse(m *Machine) string {
	s := fmt.Sprintf("processor seconds: pods %.0f, picker %.1f, load generator %.0f", m.PodsCPUSeconds, m.PickerCPUSeconds,
		m.ClientCPUSeconds)
	if m.MeanCPU >= 0 {
		s = fmt.Sprintf("machine %.0f %% busy in the mean (%.0f %% by the demo), %.0f %% at most; ", 100*m.MeanCPU, 100*r.ownUse(m),
			100*m.MaxCPU) + s
	}
	if m.MaxLateSeconds > 0.1 {
		s += fmt.Sprintf("; requests were sent up to %.1f s late", m.MaxLateSeconds)
	}
	return s
}

// ownUse is the part of the machine that the demo's own processes took, 0 to 1.
func (r *Report) ownUse(m *Machine) float64 {
	all := m.WallSeconds * float64(max(1, r.Config.CPUs))
	if all <= 0 {
		return 0
	}
	return (m.PodsCPUSeconds + m.PickerCPUSeconds + m.ClientCPUSeconds) / all
}

// pods are the names of all runs' pods, in order.
func (r *Report) pods() []string {
	seen := map[string]bool{}
	for i := range r.Runs {
		for pod := range r.Runs[i].RequestsPerPod {
			seen[pod] = true
		}
	}
	var out []string
	for pod := range seen {
		out = append(out, pod)
	}
	slices.SortFunc(out, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return out
}

// writeColumns writes rows in columns, the first flush left and the others flush right.
func writeColumns(b *strings.Builder, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString(cell + pad)
				continue
			}
			b.WriteString("  " + pad + cell)
		}
		b.WriteByte('\n')
	}
}
