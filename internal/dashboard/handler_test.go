package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

func testServer(t *testing.T, d Data) *httptest.Server {
	t.Helper()
	if d.Ring == nil {
		d.Ring = NewRing()
	}
	mux := http.NewServeMux()
	Register(mux, d)
	s := httptest.NewServer(WithPage(mux))
	t.Cleanup(s.Close)
	return s
}

func ask(t *testing.T, method, url, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header, string(text)
}

func TestParametersAreChecked(t *testing.T) {
	s := testServer(t, Data{
		Prefixes: func(int) []api.Prefix { return nil },
		Explain: func(_ context.Context, in *picker.Request) (*api.Explanation, error) {
			if string(in.Body) == "{" {
				return nil, &picker.Error{Status: 400, Message: "not JSON"}
			}
			return &api.Explanation{Pool: "m"}, nil
		},
	})
	for _, tc := range []struct {
		method, path, body string
		want               int
		text               string
	}{
		{"GET", "/decisions", "", 200, ""},
		{"GET", "/decisions?limit=-1", "", 400, "limit=-1: want a number of at least 0"},
		{"GET", "/prefixes?limit=0", "", 400, "limit=0: want a number of at least 1"},
		{"GET", "/decisions?limit=-99999999999999999999", "", 400, "limit"},
		{"GET", "/decisions?limit=%ff", "", 400, "limit"},
		{"GET", "/prefixes", "", 200, `{"prefixes":[]}`},
		{"POST", "/prefixes", "", 405, ""},
		{"GET", "/explain", "", 405, ""},
		{"POST", "/explain", "{}", 200, `"pool":"m"`},
		{"POST", "/explain", "{", 400, `{"code":400,"message":"not JSON"}`},
		{"POST", "/explain?path=/nowhere", "{}", 400, "path"},
		{"POST", "/explain", strings.Repeat(" ", maxBody+1), 413, "larger"},
		{"GET", "/nowhere", "", 404, ""},
	} {
		code, _, text := ask(t, tc.method, s.URL+tc.path, tc.body)
		if code != tc.want || !strings.Contains(text, tc.text) {
			t.Errorf("%s %s: %d %s, want %d %s", tc.method, tc.path, code, text[:min(len(text), 200)], tc.want, tc.text)
		}
	}
}

// TestALargerLimitThanThereIsGivesAll: scripts ask for 1000 decisions without knowing how many are kept.
func TestALargerLimitThanThereIsGivesAll(t *testing.T) {
	asked := 0
	ring := NewRing()
	for range api.MaxDecisions + 5 {
		ring.Decided(api.Decision{})
	}
	s := testServer(t, Data{Ring: ring, Prefixes: func(n int) []api.Prefix { asked = n; return nil }})
	for _, limit := range []string{"1000", "99999999999999999999"} {
		if code, _, text := ask(t, "GET", s.URL+"/decisions?limit="+limit, ""); code != 200 || strings.Count(text, "\n") != api.MaxDecisions {
			t.Errorf("limit=%s: %d with %d decisions, want 200 with %d", limit, code, strings.Count(text, "\n"), api.MaxDecisions)
		}
		if code, _, _ := ask(t, "GET", s.URL+"/prefixes?limit="+limit, ""); code != 200 || asked != api.MaxPrefixes {
			t.Errorf("limit=%s: %d, %d prefixes asked for, want %d", limit, code, asked, api.MaxPrefixes)
		}
	}
}

// TestOtherSitesMayNotAsk: a page of somebody else cannot have a browser explain requests.
func TestOtherSitesMayNotAsk(t *testing.T) {
	s := testServer(t, Data{Explain: func(context.Context, *picker.Request) (*api.Explanation, error) { return &api.Explanation{}, nil }})
	if code, _, _ := ask(t, "POST", s.URL+"/explain", "{}", "Sec-Fetch-Site", "cross-site"); code != http.StatusForbidden {
		t.Errorf("%d for another site", code)
	}
	if code, _, _ := ask(t, "POST", s.URL+"/explain", "{}", "Sec-Fetch-Site", "same-origin"); code != http.StatusOK {
		t.Errorf("%d for the page itself", code)
	}
}

// TestWhoAsksIsNotPartOfTheRequest: the token that opens /explain must not become the tenant's key of the request.
func TestWhoAsksIsNotPartOfTheRequest(t *testing.T) {
	var got, session string
	s := testServer(t, Data{Explain: func(_ context.Context, in *picker.Request) (*api.Explanation, error) {
		got, session = in.Header("authorization"), in.Header("x-session-id")
		return &api.Explanation{}, nil
	}})
	ask(t, "POST", s.URL+"/explain", "{}", "Authorization", "Bearer x", "X-Session-Id", "s")
	if got != "" || session != "s" {
		t.Errorf("authorization %q, session %q", got, session)
	}
}

func TestOnlyFewAreExplainedAtATime(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	s := testServer(t, Data{Explain: func(context.Context, *picker.Request) (*api.Explanation, error) {
		begun <- struct{}{}
		<-end
		return &api.Explanation{}, nil
	}})
	done := make(chan int)
	for range maxExplaining {
		go func() {
			answer, err := http.Post(s.URL+"/explain", "application/json", strings.NewReader("{}"))
			if err != nil {
				done <- 0
				return
			}
			_ = answer.Body.Close()
			done <- answer.StatusCode
		}()
		<-begun
	}
	if code, _, _ := ask(t, "POST", s.URL+"/explain", "{}"); code != http.StatusTooManyRequests {
		t.Errorf("%d for one more", code)
	}
	close(end)
	for range maxExplaining {
		if code := <-done; code != 200 {
			t.Errorf("%d", code)
		}
	}
}

func TestDecisionsAreFollowed(t *testing.T) {
	for query, want := range map[string][]string{"": {"2 ", "3 ", "4 ", "4 completed"}, "&ended=1": {"4 completed"}} {
		ring := NewRing()
		s := testServer(t, Data{Ring: ring})
		for range 3 {
			ring.Decided(api.Decision{})
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/decisions?follow=1&limit=2"+query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		id := ring.Decided(api.Decision{})
		ring.Ended(api.Decision{ID: id, Outcome: "completed"})
		lines := bufio.NewScanner(answer.Body)
		for _, one := range want {
			more := lines.Scan()
			for more && lines.Text() == "" { // a beat: the machine was that busy
				more = lines.Scan()
			}
			if !more {
				t.Fatalf("the stream has ended: %v", lines.Err())
			}
			var d api.Decision
			if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%d %s", d.ID, d.Outcome); got != one {
				t.Errorf("%q, want %q", got, one)
			}
		}
		_ = answer.Body.Close()
	}
}

// TestAQuietStreamSaysThatItIsThere: an empty line now and then, and decisions after it as before.
func TestAQuietStreamSaysThatItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ring := NewRing()
		s := &server{Data: Data{Ring: ring}}
		ctx, cancel := context.WithCancel(t.Context())
		w, left := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(left)
			s.decisions(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/decisions?follow=1&limit=0", http.NoBody))
		}()
		time.Sleep(2*beat + beat/2)
		if synctest.Wait(); w.Body.String() != "\n\n" {
			t.Errorf("%q after two and a half beats", w.Body.String())
		}
		ring.Decided(api.Decision{})
		if synctest.Wait(); !strings.HasPrefix(w.Body.String(), "\n\n{\"id\":1,") {
			t.Errorf("%q after a decision", w.Body.String())
		}
		cancel()
		<-left
		if ring.following.Load() != 0 {
			t.Error("it follows still")
		}
	})
}

// TestThePageNeedsNobody: its files name no other host, run nothing inline, and are sent with a policy that allows neither.
func TestThePageNeedsNobody(t *testing.T) {
	s := testServer(t, Data{})
	files, err := assets.ReadDir("assets")
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{"/"}
	for _, f := range files {
		paths = append(paths, "/assets/"+f.Name())
	}
	for _, path := range paths {
		code, header, text := ask(t, "GET", s.URL+path, "")
		if code != 200 || header.Get("Content-Security-Policy") != policy || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d, %v", path, code, header)
		}
		for _, bad := range []string{"http://", "https://", "//cdn", "<style", "style=", "onclick=", "javascript:", "innerHTML", "eval("} {
			if strings.Contains(strings.ReplaceAll(text, "http://www.w3.org/2000/svg", ""), bad) {
				t.Errorf("%s: has %s", path, bad)
			}
		}
	}
	if code, _, _ := ask(t, "GET", s.URL+"/assets/", ""); code != 404 {
		t.Errorf("the files are listed: %d", code)
	}
	if code, _, _ := ask(t, "GET", s.URL+"/assets/..%2fhandler.go", ""); code != 404 {
		t.Errorf("other files are served: %d", code)
	}
}
