package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// patience is the limit for operations that should take milliseconds.
const patience = 20 * time.Second

// terminal is what a screen is shown on.
type terminal struct {
	t         *testing.T
	own, user *os.File // the program's side, the user's

	mu   sync.Mutex
	text string // written since the last look
}

func newTerminal(t *testing.T, columns, rows uint16) *terminal {
	user, own, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, own: own, user: user}
	x.resize(columns, rows)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, err := user.Read(buf)
			if err != nil {
				return
			}
			x.mu.Lock()
			x.text += string(buf[:n])
			x.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_, _ = user.WriteString("\n") // releases a reader of keys
		_ = own.Close()
		_ = user.Close()
		<-done
	})
	return x
}

func (x *terminal) resize(columns, rows uint16) {
	x.t.Helper()
	if err := pty.Setsize(x.user, &pty.Winsize{Cols: columns, Rows: rows}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	if _, err := x.user.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// until waits for a complete picture that satisfies a condition.
func (x *terminal) until(what string, good func(lines []string) bool) {
	x.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		x.mu.Lock()
		text := x.text
		x.mu.Unlock()
		last := text[max(strings.LastIndex(text, home), 0):]
		if !strings.HasSuffix(last, rest) {
			continue
		}
		plain := strings.NewReplacer(home, "", erase, "", rest, "", "\r", "").Replace(last)
		if good(strings.Split(plain, "\n")) {
			return
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.t.Fatalf("%s is not shown: %q", what, x.text)
}

func numbered(n int) []string {
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf("line %d of a text that is long", i))
	}
	return lines
}

// TestTheScreenFollowsTheTerminalAndGivesItBack through sizes, keys, errors and its end.
func TestTheScreenFollowsTheTerminalAndGivesItBack(t *testing.T) {
	x := newTerminal(t, 60, 10)
	before, err := term.GetState(int(x.own.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var failure error
	asked := 0
	s := Screen{In: x.own, Out: x.own, Title: "pools", Every: time.Hour, Lines: func(context.Context) ([]string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return numbered(20), failure
	}}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()

	x.until("the first page", func(l []string) bool {
		return len(l) == 10 && strings.HasPrefix(l[0], "pools ") && strings.Contains(l[0], "lines 1 to 8 of 20") && l[2] == "line 0 of a text that is long" && strings.HasPrefix(l[9], "line 7 ")
	})
	x.press("jj\x1b[B")
	x.until("three lines further", func(l []string) bool { return strings.HasPrefix(l[2], "line 3 ") })
	x.press("k")
	x.until("one line back", func(l []string) bool { return strings.HasPrefix(l[2], "line 2 ") })
	x.resize(12, 40)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil { // a terminal notifies its foreground process only
		t.Fatal(err)
	}
	x.until("all of it, cut", func(l []string) bool {
		return len(l) == 22 && l[2] == "line 0 of a " && strings.HasPrefix(l[21], "line 19 ")
	})
	x.press("ll")
	x.until("what is to the right", func(l []string) bool { return l[2] == " that is lon" })
	x.press("l\x1b[C")
	x.until("the end of the widest lines, and no further", func(l []string) bool { return l[12] == "that is long" })
	x.press("h\x1b[D\x1b[D")
	x.until("the begin again", func(l []string) bool { return l[2] == "line 0 of a " })
	x.resize(60, 10)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	x.until("the small terminal again", func(l []string) bool { return len(l) == 10 })
	x.press("\x1b[6~")
	x.until("a page further", func(l []string) bool { return len(l) == 10 && strings.HasPrefix(l[2], "line 7 ") })
	x.press("G")
	x.until("the last page", func(l []string) bool { return strings.HasPrefix(l[9], "line 19 ") })
	x.press("\x1b[5~")
	x.until("a page back", func(l []string) bool { return strings.HasPrefix(l[2], "line 5 ") })
	x.press("g")
	x.until("the first page again", func(l []string) bool { return strings.HasPrefix(l[2], "line 0 ") })
	mu.Lock()
	failure = errors.New("gone")
	mu.Unlock()
	x.press(" ")
	x.until("what went wrong", func(l []string) bool { return l[2] == "Error: gone" })
	x.press("q")
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("q does not quit")
	}
	mu.Lock()
	defer mu.Unlock()
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
	if after, err := term.GetState(int(x.own.Fd())); err != nil || !reflect.DeepEqual(before, after) {
		t.Errorf("the terminal is not as it was: %v", err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		x.mu.Lock()
		text := x.text
		x.mu.Unlock()
		if strings.HasPrefix(text, enter) && strings.Contains(text, leave) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the screen was not left as it was found: %q", text)
		}
	}
}

func TestTheScreenEndsWithItsContextAndNeedsATerminal(t *testing.T) {
	x := newTerminal(t, 60, 10)
	ctx, cancel := context.WithCancel(t.Context())
	s := Screen{In: x.own, Out: x.own, Every: time.Hour, Lines: func(context.Context) ([]string, error) { return []string{"a"}, nil }}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	x.until("the line", func(l []string) bool { return len(l) == 3 && l[2] == "a" })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := (&Screen{In: file, Out: file, Every: time.Hour}).Run(t.Context()); err == nil {
		t.Error("a file is a terminal")
	}
}

func TestCutCountsWhatIsSeen(t *testing.T) {
	for line, want := range map[string]string{
		"short":                        "short",
		"exactly ten":                  "exactly te",
		"":                             "",
		"ééééééééééé":                  "éééééééééé",
		"\x1b[31mred\x1b[0m":           "\x1b[31mred\x1b[0m",
		"\x1b[31mred and more\x1b[0m":  "\x1b[31mred and mo\x1b[0m",
		"\x1b[31mred\x1b[0m and later": "\x1b[31mred\x1b[0m and la",
	} {
		if got := Cut(line, 10); got != want {
			t.Errorf("%q is cut to %q, want %q", line, got, want)
		}
	}
}
