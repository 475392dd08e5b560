// Package top shows lines on a full-screen terminal, and refreshes them as they change.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// Screen is a terminal that shows lines until the user has seen enough.
type Screen struct {
	In, Out *os.File
	// Title is above the lines; Every is how often they are requested.
	Title string
	Every time.Duration
	// Lines are what is shown. An error is shown in their place.
	Lines func(context.Context) ([]string, error)
}

// Control sequences of the terminal.
const (
	enter = "\x1b[?1049h\x1b[?25l" // another screen, no cursor
	leave = "\x1b[?25h\x1b[?1049l"
	home  = "\x1b[H"
	rest  = "\x1b[J" // is erased
	erase = "\x1b[K"
)

// Run shows the lines until ctx ends or q, Ctrl-C or Escape is pressed. The terminal is then as it was before. The arrows,
// h, j, k, l and the page keys scroll, g and G go to the first and the last line, the space bar asks at once.
func (s *Screen) Run(ctx context.Context) (err error) {
	state, err := term.MakeRaw(int(s.In.Fd()))
	if err != nil {
		return fmt.Errorf("setting up the terminal: %w", err)
	}
	defer func() {
		_, e := io.WriteString(s.Out, leave)
		err = errors.Join(err, e, term.Restore(int(s.In.Fd()), state))
	}()
	if _, err := io.WriteString(s.Out, enter); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resized := make(chan os.Signal, 1)
	notifyResized(resized)
	defer signal.Stop(resized)
	keys := make(chan string)
	go s.read(ctx, keys)
	return s.loop(ctx, keys, resized)
}

// shot is what was asked for.
type shot struct {
	lines []string
	err   error
	at    time.Time
}

func (s *Screen) loop(ctx context.Context, keys <-chan string, resized <-chan os.Signal) error {
	shots, again := make(chan shot, 1), make(chan struct{}, 1)
	var at place
	go s.ask(ctx, shots, again)
	last := shot{lines: []string{"..."}}
	for {
		if err := s.draw(&last, &at); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case last = <-shots:
		case key, ok := <-keys:
			switch {
			case !ok, key == "q", key == "\x03", key == "\x1b":
				return nil
			case key == " ":
				select {
				case again <- struct{}{}:
				default: // it is asked already
				}
			default:
				at.move(key)
			}
		}
	}
}

// place is the part of the lines that is shown: the first line, the first column, and how many lines there is room for.
type place struct{ top, left, room int }

// sideways is how many columns a key scrolls.
const sideways = 8

// move scrolls by a key. Drawing brings the place back into its bounds.
func (p *place) move(key string) {
	switch key {
	case "j", "\x1b[B":
		p.top++
	case "k", "\x1b[A":
		p.top--
	case "l", "\x1b[C":
		p.left += sideways
	case "h", "\x1b[D":
		p.left -= sideways
	case "\x1b[6~", "\x06":
		p.top += max(p.room-1, 1)
	case "\x1b[5~", "\x02":
		p.top -= max(p.room-1, 1)
	case "g", "\x1b[H":
		p.top, p.left = 0, 0
	case "G", "\x1b[F":
		p.top = math.MaxInt32
	}
}

// ask asks for the lines now and then, and when the user wants.
func (s *Screen) ask(ctx context.Context, shots chan<- shot, again <-chan struct{}) {
	tick := time.NewTicker(s.Every)
	defer tick.Stop()
	for {
		lines, err := s.Lines(ctx)
		select {
		case shots <- shot{lines, err, time.Now()}:
		case <-ctx.Done():
			return
		}
		select {
		case <-tick.C:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// read hands on keys, sequences of arrows as one. It ends with the input.
func (s *Screen) read(ctx context.Context, keys chan<- string) {
	defer close(keys)
	buf := make([]byte, 64)
	for {
		n, err := s.In.Read(buf)
		if err != nil {
			return
		}
		text := string(buf[:n])
		for text != "" {
			size := sequence(text)
			select {
			case keys <- text[:size]:
			case <-ctx.Done():
				return
			}
			text = text[size:]
		}
	}
}

// sequence is the length of the key that a text begins with: a character, or what a terminal sends for an arrow or a page
// key, which ends with a letter or a tilde.
func sequence(text string) int {
	if !strings.HasPrefix(text, "\x1b[") {
		return 1
	}
	for i := 2; i < len(text); i++ {
		if c := text[i]; c >= '@' && c <= '~' {
			return i + 1
		}
	}
	return len(text)
}

// draw fills the terminal. It brings the place into its bounds.
func (s *Screen) draw(last *shot, at *place) error {
	width, height, err := term.GetSize(int(s.Out.Fd()))
	if err != nil || width < 1 || height < 2 {
		width, height = 80, 24
	}
	lines := last.lines
	if last.err != nil {
		lines = strings.Split("Error: "+last.err.Error(), "\n")
	}
	title := s.Title
	if !last.at.IsZero() {
		title += "   " + last.at.Format("15:04:05")
	}
	room := height - 2
	widest := 0
	for _, line := range lines {
		widest = max(widest, columns(line))
	}
	at.room = room
	at.top = max(0, min(at.top, len(lines)-room))
	at.left = max(0, min(at.left, widest-width))
	shown := lines[at.top:min(len(lines), at.top+max(room, 0))]
	if len(lines) > room {
		title += fmt.Sprintf("   lines %d to %d of %d", at.top+1, at.top+len(shown), len(lines))
	}
	if widest > width {
		title += fmt.Sprintf("   columns %d to %d of %d", at.left+1, at.left+width, widest)
	}
	var b strings.Builder
	b.WriteString(home + Cut(title+"   q quits", width) + erase + "\r\n" + erase)
	for _, line := range shown {
		b.WriteString("\r\n" + window(line, at.left, width) + erase)
	}
	b.WriteString(rest)
	_, err = io.WriteString(s.Out, b.String())
	return err
}

// columns is the width of a line, colours not counted.
func columns(line string) int {
	n := 0
	for len(line) > 0 {
		if code := escape(line); code > 0 {
			line = line[code:]
			continue
		}
		_, size := utf8.DecodeRuneInString(line)
		line = line[size:]
		n++
	}
	return n
}

// Cut is the part of a line that fits: so many characters, colours not counted, which end with it.
func Cut(line string, width int) string { return window(line, 0, width) }

// window is the part of a line from a column on that fits. Colours that begin before it hold in it.
func window(line string, left, width int) string {
	var b strings.Builder
	n, colored := 0, false
	for len(line) > 0 {
		if code := escape(line); code > 0 {
			colored = line[:code] != "\x1b[0m"
			b.WriteString(line[:code])
			line = line[code:]
			continue
		}
		if n == left+width {
			if colored {
				b.WriteString("\x1b[0m")
			}
			break
		}
		_, size := utf8.DecodeRuneInString(line)
		if n >= left {
			b.WriteString(line[:size])
		}
		line = line[size:]
		n++
	}
	return b.String()
}

// escape is the length of the colour code that a text begins with, 0 without one.
func escape(text string) int {
	if !strings.HasPrefix(text, "\x1b[") {
		return 0
	}
	return strings.IndexByte(text, 'm') + 1
}
