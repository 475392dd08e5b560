package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
)

// TestWrongInputNeverHurts sends what should not be sent; after each the next good request works.
func TestWrongInputNeverHurts(t *testing.T) {
	f := newFleet(t, 2, vllmsim.Config{SpeedUp: 50}, "MarginalCost")
	good := func(after string) {
		t.Helper()
		if a := f.do("/v1/completions", completion(tokens(1, 100), 2)); a.status != http.StatusOK {
			t.Fatalf("after %s: status %d: %s", after, a.status, a.body)
		}
	}
	good("nothing")
	for name, tc := range map[string]struct {
		path, body string
		want       int
	}{
		"broken JSON":             {"/v1/completions", `{"model": "m", "prompt": [1, 2`, 400},
		"no JSON":                 {"/v1/completions", "\x00\xff\xfe", 400},
		"nothing":                 {"/v1/completions", "", 400},
		"deep nesting":            {"/v1/chat/completions", `{"model":"m","messages":` + strings.Repeat("[", 100_000), 400},
		"a prompt of objects":     {"/v1/completions", `{"model":"m","prompt":{"a":1}}`, 400},
		"an unknown model":        {"/v1/completions", `{"model":"nobody","prompt":"x"}`, 404},
		"an unknown path":         {"/nothing", `{}`, 404},
		"what the engine refuses": {"/v1/completions", `{"model":"m","prompt":[1,2,3],"max_tokens":-5}`, 400},
	} {
		resp, err := f.client.Post(f.proxy+tc.path, "application/json", strings.NewReader(tc.body))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tc.want || !bytes.Contains(body, []byte(`"error"`)) {
			t.Errorf("%s: status %d, want %d: %s", name, resp.StatusCode, tc.want, body)
		}
		good(name)
	}
}

func TestHugeBodiesAreRefused(t *testing.T) {
	f := newFleet(t, 1, vllmsim.Config{SpeedUp: 50}, "MarginalCost")
	const size = 100 << 20
	const start = `{"model":"m","prompt":"`
	for name, framing := range map[string]string{
		"with a length": fmt.Sprintf("Content-Length: %d", size),
		"chunked":       "Transfer-Encoding: chunked",
	} {
		conn := f.dial()
		head := "POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + framing + "\r\n\r\n"
		answered, sent := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(sent)
			// If this fails, the answer shows the reason.
			if _, err := io.WriteString(conn, head); err != nil {
				return
			}
			var body io.WriteCloser = plainBody{conn}
			if strings.HasPrefix(framing, "Transfer") {
				body = httputil.NewChunkedWriter(conn)
			}
			piece := append([]byte(start), bytes.Repeat([]byte{'x'}, 64<<10)...)
			for n := 0; n < size-len(piece); n += len(piece) {
				select {
				case <-answered:
					return
				default:
				}
				if _, err := body.Write(piece); err != nil {
					return
				}
				piece = piece[:64<<10]
			}
		}()
		// The answer arrives while the client is still sending, and is read meanwhile, so it cannot be lost.
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		close(answered)
		if err != nil {
			t.Errorf("%s: no answer: %v", name, err)
		} else {
			if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
				t.Errorf("%s: status %d, closing: %v; want 413 and the connection's end", name, resp.StatusCode, resp.Close)
			}
			_ = resp.Body.Close()
		}
		_ = conn.Close()
		<-sent
		if a := f.do("/v1/completions", completion(tokens(1, 100), 2)); a.status != http.StatusOK {
			t.Fatalf("after a huge body %s: status %d: %s", name, a.status, a.body)
		}
	}
	f.until("the refusals are counted", func() bool { return f.metric("kvasir_proxy_refused_total", "too_large") >= 2 })
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.picker.Process.Pid))
	if err != nil {
		t.Skip("no /proc: the picker's memory cannot be read")
	}
	var peak int
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM:") {
			if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &peak); err != nil {
				t.Fatal(err)
			}
		}
	}
	if peak > 512<<10 {
		t.Errorf("the picker's memory peaked at %d MiB", peak>>10)
	}
}

// plainBody is a body whose length was declared.
type plainBody struct{ io.Writer }

func (plainBody) Close() error { return nil }

// dial opens a connection to the proxy on which everything has to happen in time.
func (f *fleet) dial() *net.TCPConn {
	f.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.proxy, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		f.t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// TestHalfClosedAndBrokenClients closes its half of a connection after sending, and reads the answer.
func TestHalfClosedAndBrokenClients(t *testing.T) {
	f := newFleet(t, 1, vllmsim.Config{SpeedUp: 50}, "MarginalCost")
	body := `{"model":"m","prompt":[1,2,3,4,5],"max_tokens":3}`
	request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
	const (
		nothing    = ""
		badRequest = "HTTP/1.1 400 Bad Request\r\n"
	)
	for name, tc := range map[string]struct {
		send, want string  // the beginning of the answer
		gone       float64 // requests that count as left by their clients
		broken     float64 // requests that count as aborted
	}{
		// A client that closes its half of the connection cannot be distinguished from one that is gone, and gets no answer
		// that could be taken for a complete one.
		"a whole request":    {request, nothing, 1, 0},
		"half a body":        {request[:len(request)-10], badRequest, 0, 1},
		"half a header":      {request[:len("POST /v1/completions HTTP/1.1\r\nHost: x\r\n")], badRequest, 0, 0},
		"half a line":        {request[:20], badRequest, 0, 0},
		"no HTTP":            {"\x16\x03\x01\x02\x00\x01", badRequest, 0, 0},
		"nothing":            {"", nothing, 0, 0},
		"a length that lies": {strings.Replace(request, "Content-Length: 4", "Content-Length: -4", 1), badRequest, 0, 0},
	} {
		gone := func() float64 { return f.metric("kvasir_requests_total", `outcome="client_gone"`) }
		broken := func() float64 { return f.metric("kvasir_proxy_refused_total", `reason="broken_body"`) }
		goneBefore, brokenBefore := gone(), broken()
		f.engines[0].Pause() // so that no answer is faster than the news that the client has closed
		conn := f.dial()
		if _, err := io.WriteString(conn, tc.send); err != nil {
			t.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		_ = conn.Close()
		f.engines[0].Resume()
		if err != nil || !strings.HasPrefix(string(answer), tc.want) || (tc.want == nothing) != (len(answer) == 0) {
			t.Errorf("%s: the answer is %q and ends with %v, want %q", name, answer, err, tc.want)
		}
		f.until(name+" is counted", func() bool { return gone() == goneBefore+tc.gone && broken() == brokenBefore+tc.broken })
		if a := f.do("/v1/completions", completion(tokens(1, 100), 2)); a.status != http.StatusOK {
			t.Fatalf("after %s: status %d: %s", name, a.status, a.body)
		}
	}
	f.until("nothing is left in flight", func() bool { return f.inFlight(-1) == 0 })
}

// TestRandomEventFrames lets an engine publish bytes that are no events between its real ones.
func TestRandomEventFrames(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	config := vllmsim.Config{SpeedUp: 50}
	config.Events.Tamper = func(seq uint64, payload []byte, send func(uint64, []byte)) {
		junk := make([]byte, rng.IntN(300))
		for i := range junk {
			junk[i] = byte(rng.Uint32())
		}
		send(seq, junk)
		damaged := append([]byte(nil), payload...)
		damaged[rng.IntN(len(damaged))] ^= 1 << rng.IntN(8)
		send(seq+1000, damaged)
	}
	f := newFleet(t, 2, config, "StickyLeastLoaded")
	for family := range 20 {
		if a := f.do("/v1/completions", completion(tokens(family, 320), 2)); a.status != http.StatusOK {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	f.until("the damage is counted", func() bool { return f.metric("kvasir_events_decode_errors_total") > 0 })
}
