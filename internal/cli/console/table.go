package console

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Cell of a table.
type Cell struct {
	Text string
	Tone Tone
	// Right aligns numbers.
	Right bool
}

// Text is a plain cell.
func Text(text string) Cell { return Cell{Text: text} }

// Number is a cell that is aligned to the right.
func Number(format string, args ...any) Cell {
	return Cell{Text: fmt.Sprintf(format, args...), Right: true}
}

// Count is a number with the noun that it counts, in the singular for one.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Grid is a table. Rows can be shorter than the header.
type Grid struct {
	Header []string
	Rows   [][]Cell
}

// Add adds a row.
func (g *Grid) Add(cells ...Cell) { g.Rows = append(g.Rows, cells) }

// gap between columns.
const gap = "   "

// Lines lays the table out: columns as wide as their widest cell, and nothing behind the last cell of a line.
func (g *Grid) Lines(c *Console) []string {
	head := make([]Cell, len(g.Header))
	for i, h := range g.Header {
		head[i] = Cell{Text: h, Tone: Strong}
	}
	rows := append([][]Cell{head}, g.Rows...)
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell.Text))
		}
	}
	for i := range head {
		head[i].Right = len(g.Rows) > 0 && i < len(g.Rows[0]) && g.Rows[0][i].Right
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			blank := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell.Text))
			if cell.Right {
				b.WriteString(blank)
			}
			b.WriteString(c.Paint(cell.Tone, cell.Text))
			if i < len(row)-1 {
				if !cell.Right {
					b.WriteString(blank)
				}
				b.WriteString(gap)
			}
		}
		lines[n] = strings.TrimRight(b.String(), " ")
	}
	return lines
}
