package main

import (
	"bytes"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/version"
)

func TestTheVersionIsPrinted(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		var out, stderr bytes.Buffer
		if code := run(t.Context(), args, stdio{Out: &out, Err: &stderr}); code != 0 {
			t.Errorf("%v: status %d, %s", args, code, &stderr)
		}
		if want := "kubectl kvasir " + version.Get().String() + "\n"; out.String() != want {
			t.Errorf("%v: %q, want %q", args, &out, want)
		}
	}
	if status, out, errs := exec(t, "", "version", "-o", "jsonpath={.version}"); status != 0 || out != version.Get().Version+"\n" {
		t.Errorf("status %d, %q%s", status, out, errs)
	}
}
