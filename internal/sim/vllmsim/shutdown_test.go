package vllmsim

import (
	"context"
	"net/http"
	"testing"
	"time"
)

func TestShutdownAbortsWithoutTimeout(t *testing.T) {
	e := start(t, Config{})
	e.Pause()
	resp := openAsync(t, e, "/v1/completions", object{"prompt": ids(1, 5), "max_tokens": 1000, "stream": true})
	eventually(t, "the request waits", func() bool { return e.Stats().Waiting == 1 })
	e.Step()
	body := (<-resp).Body
	if err := e.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	all := chunks(t, body)
	if r := all[len(all)-1].Choices[0].FinishReason; r == nil || *r != finishAbort {
		t.Errorf("the stream ended with %v", r)
	}
	if _, err := http.Get(e.URL() + "/health"); err == nil {
		t.Error("an ended engine answers")
	}
}

func TestShutdownDrains(t *testing.T) {
	e := start(t, Config{ShutdownTimeout: time.Minute})
	e.Pause()
	resp := openAsync(t, e, "/v1/completions", object{"prompt": ids(1, 5), "max_tokens": 3, "stream": true})
	eventually(t, "the request waits", func() bool { return e.Stats().Waiting == 1 })
	ended := make(chan error, 1)
	go func() { ended <- e.Shutdown(context.Background()) }()
	eventually(t, "draining", e.draining.Load)
	if status, _ := get(t, e, "/health"); status != http.StatusOK {
		t.Errorf("health while draining: %d", status)
	}
	late := complete(t, e, "/v1/completions", object{"prompt": ids(1, 5), "max_tokens": 3})
	if r := late.Choices[0].FinishReason; r == nil || *r != finishAbort || late.Usage.CompletionTokens != 0 {
		t.Errorf("a late request: %+v", late)
	}
	e.Resume()
	all := chunks(t, (<-resp).Body)
	if r := all[len(all)-1].Choices[0].FinishReason; r == nil || *r != finishLength {
		t.Errorf("the drained stream ended with %v", r)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestDrainGivesUpInTime(t *testing.T) {
	e := start(t, Config{ShutdownTimeout: time.Millisecond})
	e.Pause()
	resp := openAsync(t, e, "/v1/completions", object{"prompt": ids(1, 5), "max_tokens": 3, "stream": true})
	eventually(t, "the request waits", func() bool { return e.Stats().Waiting == 1 })
	if err := e.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	all := chunks(t, (<-resp).Body)
	if r := all[len(all)-1].Choices[0].FinishReason; r == nil || *r != finishAbort {
		t.Errorf("the stream ended with %v", r)
	}
}
