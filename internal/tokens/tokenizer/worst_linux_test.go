package tokenizer

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/kvasir-dev/kvasir/test/race"
)

// worst are texts that are hard on some rule: single words without an end, white space, marks, digits, what added tokens
// begin with, and what rules look ahead for. Each is one of these, repeated. The first few are what most rules differ in.
var worst = []string{
	"ab", "aA", " ", "\n ", "<|", "'s", "1", "!\n", "中", "e\u0301", "▁",
	"a", "Aa", "A", "\n", "\r\n", " \n", "\t", "<", "<|endoftext|", "[A", "'", "'S", "12 ", "1,", "!", "! ", "/", "中文字", "カ", "\u0301",
	"ǅ", "🙂", "\x00", "\u00a0", "\u2028", "_", "ſ", "Ⅷ", "가", "각\u11a8",
}

const fewWorst = 11

// cpuTime is what the thread has computed. Its goroutine must be locked to it.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	const threadCPU = 3 // CLOCK_THREAD_CPUTIME_ID
	var at syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&at)), 0); errno != 0 {
		t.Fatal(errno)
	}
	return time.Duration(at.Nano())
}

// testWorst: eight times as much of what is worst takes less than 32 times the work, which would be 64 times if it were
// quadratic, and a megabyte would take less than two seconds. It counts the thread's own time, the least of several.
func testWorst(t *testing.T, m *Tokenizer, pieces []string) {
	t.Helper()
	if race.Enabled {
		return // it costs more than what is measured
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const short, long = 1 << 13, 1 << 16
	var ids []uint32
	least := func(piece string, size, runs int) time.Duration {
		text := strings.Repeat(piece, size/len(piece))
		out := time.Duration(math.MaxInt64)
		for range runs {
			before := cpuTime(t)
			var err error
			if ids, err = m.Encode(ids[:0], text, false); err != nil {
				t.Fatalf("%q: %v", piece, err)
			}
			out = min(out, cpuTime(t)-before)
		}
		return out
	}
	for _, piece := range pieces {
		verdict := ""
		for range 4 { // other work on the machine disturbs even that
			a, b := least(piece, short, 2), least(piece, long, 1)
			if b <= 32*max(a, 50*time.Microsecond) && b <= 2*time.Second*long/(1<<20) {
				verdict = ""
				break
			}
			verdict = fmt.Sprintf("%q: %v for %d bytes, %v for %d", piece, a, short, b, long)
		}
		if verdict != "" {
			t.Error(verdict)
		}
	}
}

// TestWorst is of whole models; TestVariants does the same for the rules of others.
func TestWorst(t *testing.T) {
	for _, dir := range modelDirs(t) {
		t.Run(dir, func(t *testing.T) { testWorst(t, model(t, dir), worst) })
	}
}
