package main

import (
	"fmt"
	"time"

	"github.com/kvasir-dev/kvasir/internal/cli/console"
)

// labBar reports how many runs of a lab command are done, on terminals only.
type labBar struct {
	bar   *console.Progress // nil where there is no terminal
	began time.Time
}

func newLabBar(std stdio) *labBar {
	b := &labBar{began: time.Now()}
	if std.Live {
		b.bar = std.Progress()
	}
	return b
}

// show displays that so many of all are done.
func (b *labBar) show(done, all int) {
	if b.bar != nil {
		b.bar.Show(done, all, "runs", fmt.Sprintf("%.0f s", time.Since(b.began).Seconds()))
	}
}

func (b *labBar) end() {
	if b.bar != nil {
		b.bar.End()
	}
}
