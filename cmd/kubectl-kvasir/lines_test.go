package main

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadLine(t *testing.T) {
	long := strings.Repeat("x", 100)
	for name, tc := range map[string]struct {
		input string
		want  []string // "!" for a line that is too long
	}{
		"nothing":                          {"", nil},
		"one line":                         {"a\n", []string{"a\n"}},
		"a last line without an end":       {"a\nb", []string{"a\n", "b"}},
		"empty lines":                      {"\n\n", []string{"\n", "\n"}},
		"lines longer than the buffer":     {long[:50] + "\n" + long[:30], []string{long[:50] + "\n", long[:30]}},
		"a line that is too long":          {"a\n" + long + "\nb\n", []string{"a\n", "!", "b\n"}},
		"a last line that is too long":     {"a\n" + long, []string{"a\n", "!"}},
		"a line that is as long as may be": {long[:63] + "\n" + long[:64] + "\n", []string{long[:63] + "\n", "!"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := bufio.NewReaderSize(strings.NewReader(tc.input), 16)
			var got []string
			for {
				line, err := readLine(in, nil, 64)
				switch {
				case errors.Is(err, errLine):
					got = append(got, "!")
					continue
				case len(line) > 0:
					got = append(got, string(line))
				}
				if errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
