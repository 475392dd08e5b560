// Package docpage keeps the examples of the docs true: what they show is what a test has seen.
//
// An example stands in a block of kind console: a line that begins with "$ ", and what the command prints. Numbers, times,
// hashes and the widths of columns differ from run to run, and are not compared.
package docpage

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// Check compares what a page shows for a command with what it has printed. With update the page is written again.
func Check(page, command, output string, update bool) error {
	_, file, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(file), "..", "..", "docs", page)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin := "\n$ " + command + "\n"
	at := strings.Index(string(text), begin)
	if at < 0 {
		return fmt.Errorf("docs/%s has no example %q", page, command)
	}
	at += len(begin)
	size := len(text) - at
	for _, end := range []string{"\n$ ", "\n```"} {
		if n := strings.Index(string(text[at-1:]), end); n >= 0 {
			size = min(size, n)
		}
	}
	shown := string(text[at : at+size])
	if Plain(shown) == Plain(output) {
		return nil
	}
	if !update {
		return fmt.Errorf("docs/%s shows for %q\n%s\nand it prints\n%s\n(rewrite it with -update)", page, command, shown, output)
	}
	return os.WriteFile(path, []byte(string(text[:at])+strings.TrimRight(output, "\n")+"\n"+string(text[at+size:])), 0o600)
}

var (
	hashes  = regexp.MustCompile(`\b[0-9a-f]{12}\b|\b[0-9a-f]{16}\b|\b[0-9a-f]{32}\b`)
	numbers = regexp.MustCompile(`[0-9]+([.][0-9]+)?`)
	units   = regexp.MustCompile(`0 (ms|s)\b`)
	blanks  = regexp.MustCompile(`[ \t]+`)
)

// Plain is a text without what differs from run to run.
func Plain(text string) string {
	text = hashes.ReplaceAllString(text, "HASH")
	text = units.ReplaceAllString(numbers.ReplaceAllString(text, "0"), "0 s")
	return strings.TrimSpace(blanks.ReplaceAllString(text, " "))
}
