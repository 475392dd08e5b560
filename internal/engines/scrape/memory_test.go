package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/budget"
)

// TestPagesDrawOnTheRoom: the endless pages of many engines take together no more than the room and what is each one's own. An engine
// with a page of ordinary size is read as always, and everything is given back.
func TestPagesDrawOnTheRoom(t *testing.T) {
	const engines = 8
	room := budget.NewRoom(4 << 20)
	begun, release := sync.WaitGroup{}, make(chan struct{})
	begun.Add(engines)
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.WriteString(w, strings.Repeat("x", 1<<20))
		begun.Done()
		<-release
		for chunk := strings.Repeat("x", 64<<10); err == nil && r.Context().Err() == nil; {
			_, err = io.WriteString(w, chunk)
		}
	}))
	defer endless.Close()
	ordinary := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, page1(4, 2), strings.Repeat("# HELP x\n", 20_000))
	}))
	defer ordinary.Close()
	options := Options{Room: room, Dial: new(net.Dialer).DialContext}
	read := func(url string) error {
		p := newPage(where{address: strings.TrimPrefix(url, "http://")}, &options, func() {})
		defer p.share.Close()
		defer p.client.CloseIdleConnections()
		var body bytes.Buffer
		err := p.getWithin(t.Context(), time.Minute, "/metrics", MaxPage, &body)
		if n := p.share.Held(); n != body.Cap() {
			t.Errorf("a buffer of %d bytes is kept, and %d are taken", body.Cap(), n)
		}
		p.shrink(&body)
		if n := p.share.Held(); n > keepBuffer {
			t.Errorf("%d bytes are kept", n)
		}
		return err
	}
	errs := make(chan error, engines)
	for range engines {
		go func() { errs <- read(endless.URL) }()
	}
	begun.Wait()
	if err := read(ordinary.URL); err != nil {
		t.Errorf("another engine's page: %v", err)
	}
	close(release)
	for range engines {
		if err := <-errs; !errors.Is(err, budget.ErrFull) {
			t.Errorf("got %v", err)
		}
	}
	if n := room.Held(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}
