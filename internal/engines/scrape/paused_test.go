package scrape

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestPausesAreObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := new(atomic.Pointer[string])
		say := func(s string) { answer.Store(&s) }
		say(`{"is_paused":false}`)
		p := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				_, _ = fmt.Fprint(w, page1(0, 0))
				return
			}
			switch body := *answer.Load(); body {
			case "":
				http.NotFound(w, r)
			case "hang":
				<-r.Context().Done()
			default:
				_, _ = fmt.Fprint(w, body)
			}
		})
		got := newLog()
		s := New(Options{Observe: got.observe, Dial: p.dial, Pauses: true})
		defer s.Close()
		s.Set([]Target{target("a", 0, "pod:8000")})
		for _, tc := range []struct {
			answer string
			within time.Duration
			want   bool
		}{
			{`{"is_paused":false}`, 5 * time.Second, false},
			{`{"is_paused":true}`, 5 * time.Second, true},
			{"hang", 5 * time.Second, true}, // no answer says nothing
			{`{"is_paused":false}`, 10 * time.Second, false},
			{`{"is_paused":true}`, 5 * time.Second, true},
			{"", 5 * time.Second, false}, // restarted in another mode
			{`{"is_paused":true}`, 2 * time.Minute, true},
		} {
			say(tc.answer)
			time.Sleep(tc.within)
			synctest.Wait()
			readings := got.take()
			if last := readings[len(readings)-1]; last.m.Paused != tc.want {
				t.Errorf("after %q paused is %v", tc.answer, last.m.Paused)
			}
		}
	})
}

func TestPaused(t *testing.T) {
	for answer, want := range map[string]string{
		`{"is_paused": true}`: "true", `{"is_paused": false}`: "false", `{"is_paused": null}`: "", `{}`: "", `true`: "", `<html>`: "", "": "",
		`{"is_paused": "yes"}`: "",
	} {
		paused, err := Paused([]byte(answer))
		if got := fmt.Sprint(paused); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%s: %v, %v", answer, paused, err)
		}
	}
}

func FuzzPaused(f *testing.F) {
	f.Add([]byte(`{"is_paused":true}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if paused, err := Paused(text); err != nil && paused {
			t.Errorf("%q: paused, and an error %v", text, err)
		}
	})
}
