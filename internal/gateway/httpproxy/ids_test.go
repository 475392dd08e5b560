package httpproxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// TestIDsOfPromptsDrawOnTheBudget: a prompt of ids takes more than its bytes.
func TestIDsOfPromptsDrawOnTheBudget(t *testing.T) {
	b := budget.New(3<<20, time.Now)
	h := newHouse(t, Options{Budget: b}, spec(engine(t, sum)))
	for prompt, want := range map[string]int{
		`"` + strings.Repeat("0 ", 256<<10) + `"`:     http.StatusOK,
		`[0` + strings.Repeat(",0", 256<<10) + `]`:    http.StatusServiceUnavailable,
		`[[0` + strings.Repeat(",0", 256<<10) + `]]`:  http.StatusServiceUnavailable,
		`[0` + strings.Repeat(",0", 16<<10) + `]`:     http.StatusOK,
		`[0` + strings.Repeat(",12345", 32<<10) + `]`: http.StatusOK,
	} {
		r, err := http.NewRequest(http.MethodPost, h.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":`+prompt+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if answer := h.do(r); answer.StatusCode != want {
			t.Errorf("%d bytes that begin with %.9s: status %d, want %d: %+v", len(prompt), prompt, answer.StatusCode, want, b.Stats())
		}
	}
	eventually(t, "all is given back", func() bool { return b.Stats().Held == 0 })
}
