package server

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestFloodsOfFieldsToReportsAreReadSlowly: fields are read before a client is authenticated, so their rate is limited.
func TestFloodsOfFieldsToReportsAreReadSlowly(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pool.yaml"), poolText("m", "m", ""))
	secret := filepath.Join(t.TempDir(), "secret")
	put(t, secret, "0123456789abcdef0123456789abcdef")
	i := runOn(t, dir, "--report-address", "127.0.0.1:0", "--report-insecure", "--report-secret-file", secret)
	i.eventually("it listens", func() bool { return i.listeners.reports != nil })
	const requests, free, saved, rate = 300, 64, 16 << 10, 32 << 10 // as internal/gateway/accept has them
	for _, fields := range []int{40, 400} {
		begun := time.Now()
		c, err := net.Dial("tcp", i.listeners.reports.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		go func() {
			f := http2.NewFramer(c, nil)
			_, _ = io.WriteString(c, http2.ClientPreface)
			_ = f.WriteSettings()
			// POST http / and so on, then a field of a byte, again and again.
			header := append([]byte{0x83, 0x86, 0x84, 0x01, 1, 'a'}, bytes.Repeat([]byte{0x90}, fields)...)
			for n := range uint32(requests) {
				if f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*n, BlockFragment: header, EndHeaders: true, EndStream: true}) != nil {
					return
				}
			}
		}()
		answered := map[uint32]bool{}
		for f := http2.NewFramer(nil, c); err == nil && len(answered) < requests; {
			var frame http2.Frame
			if frame, err = f.ReadFrame(); err == nil && frame.Header().Type != http2.FrameSettings && frame.Header().StreamID > 0 {
				answered[frame.Header().StreamID] = true
			}
		}
		if err != nil {
			t.Errorf("%d fields: %d requests are answered, and then: %v", fields, len(answered), err)
		}
		least := time.Duration(float64(max(0, requests*(fields-free)-saved)) / rate * float64(time.Second))
		if took := time.Since(begun); took < least {
			t.Errorf("%d fields: %d requests are answered in %v, want at least %v", fields, len(answered), took, least)
		}
		_ = c.Close()
	}
}
