package console

import (
	"fmt"
	"strings"
)

// Progress reports the progress of long work: a bar on a terminal, else a line whenever there is news.
type Progress struct {
	console *Console
	last    string
	open    bool // the line on the terminal has no end yet
}

// Progress starts a progress report.
func (c *Console) Progress() *Progress { return &Progress{console: c} }

const barWidth = 24

// Show reports that so many of all are done. Where no terminal shows it, another tenth of all and another text are news;
// detail is for terminals only.
func (p *Progress) Show(done, all int, text, detail string) {
	if !p.console.Live {
		tenth := 0
		if all > 0 {
			tenth = 10 * done / all
		}
		if news := fmt.Sprint(tenth, text); news != p.last {
			p.last = news
			fmt.Fprintf(p.console.Err, "%d of %d %s\n", done, all, text)
		}
		return
	}
	full := 0
	if all > 0 {
		full = barWidth * min(done, all) / all
	}
	if detail != "" {
		text += ", " + detail
	}
	fmt.Fprintf(p.console.Err, "\r[%s%s] %d of %d %s\x1b[K", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), done, all, text)
	p.open = true
}

// End leaves the last line as it is.
func (p *Progress) End() {
	if p.open {
		fmt.Fprintln(p.console.Err)
		p.open = false
	}
}
