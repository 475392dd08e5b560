package real

import (
	"testing"

	"github.com/kvasir-dev/kvasir/internal/freeport"
)

// freePort finds n consecutive ports of 127.0.0.1 that no process listens on.
func freePort(t *testing.T, n int) int {
	t.Helper()
	first, err := freeport.Consecutive("127.0.0.1", n)
	if err != nil {
		t.Fatal(err)
	}
	return first
}
