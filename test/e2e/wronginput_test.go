package e2e

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/vllmsim"
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
		"an unknown path":         {"/v1/nothing", `{}`, 404},
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
	for name, length := range map[string]int64{"with a length": size, "chunked": -1} {
		body := io.MultiReader(strings.NewReader(`{"model":"m","prompt":"`), io.LimitReader(endless{}, size))
		req, err := http.NewRequest(http.MethodPost, f.proxy+"/v1/completions", io.NopCloser(body))
		if err != nil {
			t.Fatal(err)
		}
		if length > 0 {
			req.ContentLength = length + int64(len(`{"model":"m","prompt":"`))
		}
		resp, err := f.client.Do(req)
		if err != nil {
			// The server may close the connection on a client that goes on sending after the answer.
			t.Logf("%s: %v", name, err)
		} else {
			if resp.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("%s: status %d, want 413", name, resp.StatusCode)
			}
			resp.Body.Close()
		}
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

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestHalfClosedAndBrokenClients(t *testing.T) {
	f := newFleet(t, 1, vllmsim.Config{SpeedUp: 50}, "MarginalCost")
	addr := strings.TrimPrefix(f.proxy, "http://")
	body := `{"model":"m","prompt":[1,2,3,4,5],"max_tokens":3}`
	request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
	for name, bytes := range map[string]string{
		"a whole request":    request,
		"half a body":        request[:len(request)-10],
		"half a header":      request[:30],
		"no HTTP":            "\x16\x03\x01\x02\x00\x01",
		"nothing":            "",
		"a length that lies": strings.Replace(request, "Content-Length: 4", "Content-Length: -4", 1),
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(bytes)); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		conn.Close()
		t.Logf("%s: %d bytes back, %v", name, len(answer), err)
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
