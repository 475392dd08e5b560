// Package progress shows how far a run is: on a terminal one line that is drawn again and again, elsewhere a line now
// and then.
package progress

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	// TerminalEvery is how often a line is drawn on a terminal.
	TerminalEvery = 200 * time.Millisecond
	// PlainEvery is how often a line is printed elsewhere.
	PlainEvery = 10 * time.Second

	minWidth = 40
	maxBar   = 40
)

// State is the content of a line.
type State struct {
	// Title names the run.
	Title             string
	Done, Total       int
	InFlight, Failed  int
	Elapsed, Expected time.Duration
	// CPU is the part of the machine that is busy, 0 to 1; negative where it is not known.
	CPU float64
}

// Line is the state in at most width columns, with a bar if there is room. All it prints is ASCII but the bar.
func Line(s State, width int) string {
	width = max(width, minWidth)
	// Numbers have a fixed width, so that the bar does not jump.
	total := fmt.Sprint(s.Total)
	text := fmt.Sprintf("%*d/%s requests, %3d in flight, %d failed", len(total), s.Done, total, s.InFlight, s.Failed)
	if s.CPU >= 0 {
		text += fmt.Sprintf(", CPU %3.0f %%", 100*s.CPU)
	}
	times := clock(s.Elapsed)
	if s.Expected > 0 {
		times += " of about " + clock(max(s.Expected, s.Elapsed))
	}
	line := s.Title + " "
	if bar := min(maxBar, width-len(line)-len(text)-len(times)-5); bar >= 8 {
		line += "[" + Bar(s.Done, s.Total, bar) + "] "
	}
	line += times + "  " + text
	if runes := []rune(line); len(runes) > width {
		line = string(runes[:width])
	}
	return line
}

// Bar is a bar of width columns, filled in the ratio done/total. It is never full before the end.
func Bar(done, total, width int) string {
	full := 0
	if total > 0 {
		full = min(max(done, 0), total) * width / total
	}
	return strings.Repeat("█", full) + strings.Repeat("·", width-full)
}

// clock is minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Round(time.Second) / time.Second)
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// Show prints the state at once, at every tick of its grain, and when done is closed; it returns then. On a terminal
// (width above 0) each line takes the place of the one before.
func Show(w io.Writer, width int, every time.Duration, done <-chan struct{}, state func() State) error {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		if err := draw(w, width, state()); err != nil {
			return err
		}
		select {
		case <-ticks.C:
			continue
		case <-done:
		}
		if err := draw(w, width, state()); err != nil {
			return err
		}
		if width > 0 {
			_, err := io.WriteString(w, "\n")
			return err
		}
		return nil
	}
}

// draw prints one line.
func draw(w io.Writer, width int, s State) error {
	line := Line(s, 120) + "\n"
	if width > 0 {
		// The last column stays free: some terminals wrap when it is written. ESC [K clears what was longer before.
		line = "\r" + Line(s, width-1) + "\x1b[K"
	}
	_, err := io.WriteString(w, line)
	return err
}
