// Package top shows lines on a full-screen terminal, and refreshes them as they change.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
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

// Run shows the lines until ctx ends or q, Ctrl-C or Escape is pressed. The terminal is then as it was before. Keys j, k
// and the arrows scroll, the space bar asks at once.
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
	signal.Notify(resized, syscall.SIGWINCH)
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
	shots, again, top := make(chan shot, 1), make(chan struct{}, 1), 0
	go s.ask(ctx, shots, again)
	last := shot{lines: []string{"..."}}
	for {
		if err := s.draw(&last, &top); err != nil {
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
			case key == "j", key == "\x1b[B":
				top++
			case key == "k", key == "\x1b[A":
				top--
			case key == " ":
				select {
				case again <- struct{}{}:
				default: // it is asked already
				}
			}
		}
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
			size := 1
			if strings.HasPrefix(text, "\x1b[") && len(text) > 2 {
				size = 3
			}
			select {
			case keys <- text[:size]:
			case <-ctx.Done():
				return
			}
			text = text[size:]
		}
	}
}

// draw fills the terminal. It brings top, the first line that is shown, into its bounds.
func (s *Screen) draw(last *shot, top *int) error {
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
	*top = max(0, min(*top, len(lines)-room))
	shown := lines[*top:min(len(lines), *top+max(room, 0))]
	if len(lines) > room {
		title += fmt.Sprintf("   lines %d to %d of %d", *top+1, *top+len(shown), len(lines))
	}
	var b strings.Builder
	b.WriteString(home + Cut(title+"   q quits", width) + erase + "\r\n" + erase)
	for _, line := range shown {
		b.WriteString("\r\n" + Cut(line, width) + erase)
	}
	b.WriteString(rest)
	_, err = io.WriteString(s.Out, b.String())
	return err
}

// Cut is the part of a line that fits: so many characters, colours not counted, which end with it.
func Cut(line string, width int) string {
	var b strings.Builder
	n, colored := 0, false
	for len(line) > 0 {
		if code := escape(line); code > 0 {
			colored = line[:code] != "\x1b[0m"
			b.WriteString(line[:code])
			line = line[code:]
			continue
		}
		if n == width {
			if colored {
				b.WriteString("\x1b[0m")
			}
			break
		}
		_, size := utf8.DecodeRuneInString(line)
		b.WriteString(line[:size])
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
