//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// screen is what a person has seen.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

// until waits for a match, and returns its first group.
func (s *screen) until(t *testing.T, pattern string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		s.mu.Lock()
		found := regexp.MustCompile(pattern).FindStringSubmatch(s.text.String())
		s.mu.Unlock()
		if found != nil {
			return found[1]
		}
	}
	t.Fatalf("no %q in a minute:\n%s", pattern, s.text.String())
	return ""
}

// TestWhatTryShowsWorks: the page is there, the request hits the cache the second time, the chats hit the caches of all engines, an engine
// that is killed is missed, and nothing is left after an interrupt.
func TestWhatTryShowsWorks(t *testing.T) {
	programs, out, errs := bin(t), &screen{}, &screen{}
	t.Setenv("TMPDIR", t.TempDir())
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	code := make(chan int, 1)
	go func() {
		code <- command(ctx, []string{
			"try", "--bin", programs, "--pods", "2", "--proxy-port", "0", "--page-port", "0",
			"--tokenizer", "../../internal/tokens/tokenizer/testdata/gpt2",
		}, out, errs)
	}()

	page := out.until(t, `(?s)page:\s+(http\S+)`)
	if status, body := get(t, page); status != http.StatusOK || !strings.Contains(body, "<html") {
		t.Errorf("the page: %d, %.100s", status, body)
	}
	url := out.until(t, `curl -i (\S+)`)
	body := out.until(t, `(?s)-d '(\{.*?\})'`)
	predicted := 0
	for range 2 {
		r, err := http.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		predicted, _ = strconv.Atoi(r.Header.Get("x-kvasir-predicted-tokens"))
	}
	if predicted < 16 {
		t.Errorf("%d tokens of the second request are in a cache", predicted)
	}
	chatsEnd(t, page)
	pid, err := strconv.Atoi(out.until(t, `kill -9 (\d+)`))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out.until(t, `(pod-0) has ended`)

	interrupt()
	if got := <-code; got != 0 {
		t.Errorf("it ended with %d: %s", got, errs.text.String())
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := http.Get(page); err == nil {
		t.Error("the picker still answers")
	}
}

// chatsEnd waits until the chats have hit the caches of all engines.
func chatsEnd(t *testing.T, page string) {
	t.Helper()
	hits := regexp.MustCompile(`(?m)^kvasir_delivered_hit_tokens_total\{endpoint="(pod-\d)/0".*\} (\d+)$`)
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_, body := get(t, page+"metrics")
		pods := 0
		for _, m := range hits.FindAllStringSubmatch(body, -1) {
			if n, _ := strconv.Atoi(m[2]); n > 1000 { // more than the request by hand
				pods++
			}
		}
		if pods == 2 {
			return
		}
	}
	t.Fatal("the chats have not hit the caches of both engines in five minutes")
}

// TestTryStartsAtOnceWithSeveralPrefixes: the first chat begins with the round, the others at even distances, and each bot has a
// system prompt of its own.
func TestTryStartsAtOnceWithSeveralPrefixes(t *testing.T) {
	for _, chats := range []float64{0.1, 40, 1000} {
		o := tryOptions{chats: chats}
		var starts []time.Duration
		systems := map[string]bool{}
		for bot := range tryBots {
			script, err := o.script(bot, 0)
			if err != nil {
				t.Fatal(err)
			}
			systems[script.System] = true
			for _, s := range script.Sessions {
				starts = append(starts, s.Start)
			}
		}
		if len(systems) != tryBots {
			t.Errorf("%d system prompts, want %d", len(systems), tryBots)
		}
		slices.Sort(starts)
		for i, start := range starts {
			if want := tryRound * time.Duration(i) / time.Duration(len(starts)); start != want {
				t.Fatalf("%v chats: chat %d begins after %v, want %v", chats, i, start, want)
			}
		}
	}
	o := tryOptions{}
	if script, err := o.script(0, 0); err != nil || len(script.Sessions) > 0 {
		t.Errorf("without chats: %v, %v", script, err)
	}
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// TestTryRefusesWhatItCannotRun with a word about the flag.
func TestTryRefusesWhatItCannotRun(t *testing.T) {
	for _, args := range [][]string{
		{"--pods", "0"}, {"--pods", "65"}, {"--page-port", "-1"}, {"--proxy-port", "65536"}, {"--chats", "-1"}, {"--chats", "NaN"}, {"more"},
	} {
		var stderr bytes.Buffer
		if code := command(t.Context(), append([]string{"try"}, args...), io.Discard, &stderr); code != exitFailed ||
			!strings.Contains(stderr.String(), strings.TrimPrefix(args[0], "--")) {
			t.Errorf("%v: %d, %s", args, code, fmt.Sprint(&stderr))
		}
	}
}
