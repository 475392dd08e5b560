//go:build unix

package progress

import (
	"os"

	"golang.org/x/sys/unix"
)

// Width is the number of columns of the terminal that f is, or 0 if it is none that can draw over a line.
func Width(f *os.File) int {
	if os.Getenv("TERM") == "dumb" {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Col == 0 {
		return 80
	}
	return int(size.Col)
}
