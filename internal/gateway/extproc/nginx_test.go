package extproc

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
	"github.com/kvasir-dev/kvasir/internal/picker"
	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// pickScript asks for a request's endpoint and sends the request there, as NGINX Gateway Fabric's does.
const pickScript = `
async function pick(r) {
    let to = '';
    try {
        const answer = await ngx.fetch(r.variables.shim, {method: r.method, headers: r.headersIn, body: r.requestText});
        to = answer.status === 200 ? answer.headers.get('x-gateway-destination-endpoint') || '' : '';
    } catch (e) {
        r.error(String(e));
    }
    r.variables.endpoint = to || r.variables.any;
    if (r.variables.endpoint === '') {
        r.return(500);
        return;
    }
    r.internalRedirect('@engine');
}
export default {pick};
`

// realNginx starts NGINX, if there is one with its JavaScript module, before a picker. anywhere is where requests go for which
// the picker names no endpoint; empty is nowhere. It gives a client of it.
func realNginx(t *testing.T, shim, anywhere string) *http.Client {
	t.Helper()
	binary, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("there is no nginx: install nginx and libnginx-mod-http-js (Debian) to run this")
	}
	about, err := exec.CommandContext(t.Context(), binary, "-V").CombinedOutput()
	if err != nil {
		t.Fatalf("nginx -V: %v", err)
	}
	module := ""
	for _, path := range regexp.MustCompile(`--(?:modules-path|prefix)=(\S+)`).FindAllStringSubmatch(string(about), -1) {
		for _, dir := range []string{path[1], filepath.Join(path[1], "modules")} {
			if _, err := os.Stat(filepath.Join(dir, "ngx_http_js_module.so")); err == nil {
				module = filepath.Join(dir, "ngx_http_js_module.so")
			}
		}
	}
	if module == "" {
		t.Skip("nginx is there without its JavaScript module: install libnginx-mod-http-js (Debian) to run this")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	config := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr warn; load_module %[2]s;
events { worker_connections 512; }
http {
  access_log off; client_max_body_size 16m; client_body_buffer_size 16m; js_path %[1]s; js_import epp from epp.js; js_fetch_max_response_buffer_size 1m;
  client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/c;
  server {
    listen unix:%[3]s;
    location / { set $endpoint ""; set $shim %[4]s; set $any "%[5]s"; js_content epp.pick; }
    location @engine { proxy_pass http://$endpoint; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }
  }
}
`, dir, module, socket, shim, anywhere)
	for name, text := range map[string]string{"nginx.conf": config, "epp.js": pickScript} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said strings.Builder
	cmd := exec.CommandContext(context.Background(), binary, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-e", "stderr")
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(said.String())
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	t.Cleanup(client.CloseIdleConnections)
	eventually(t, "nginx listens", func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return client
}

// A real NGINX in front, with a small script: bodies and streams pass as they are, refusals do what pitfall 11 says, and a
// list of destinations breaks it (pitfall 9).
func TestARealNginxInFront(t *testing.T) {
	events := strings.Repeat("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", 3)
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		body := readRequest(r)
		if !strings.Contains(body, `"stream":true`) {
			_, _ = io.WriteString(w, body)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for event := range strings.SplitAfterSeq(events, "\n\n") {
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
		}
	})
	for name, tc := range map[string]struct {
		open, ordered bool
		good, refused int
	}{
		"FailClose": {false, false, 200, 500},
		"FailOpen":  {true, false, 200, 200},
		"a list":    {false, true, 500, 500},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(e, e)
			s.OrderedDestinations = tc.ordered
			s.Endpoints[1].ID = endpoint.ID{Pod: "other"}
			h := newHouse(t, Options{}, ServeOptions{}, s)
			shim := "http://" + engine(t, (&envoytest.Nginx{Picker: h.address, Dial: []grpc.DialOption{plain}}).Shim().ServeHTTP) + "/"
			anywhere := ""
			if tc.open {
				anywhere = e
			}
			client := realNginx(t, shim, anywhere)
			post := func(body string) (int, string) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://nginx/v1/chat/completions", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				answer, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = answer.Body.Close() }()
				text, err := io.ReadAll(answer.Body)
				if err != nil {
					t.Error(err)
				}
				return answer.StatusCode, string(text)
			}
			chat := func(text, more string) string {
				return `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]` + more + "}"
			}
			for body, want := range map[string]string{
				chat("hi", ""):                       chat("hi", ""),
				chat(strings.Repeat("x", 3<<20), ""): chat(strings.Repeat("x", 3<<20), ""),
				chat("hi", `,"stream":true`):         events,
			} {
				status, text := post(body)
				if status != tc.good || status == 200 && text != want {
					t.Errorf("status %d, %d bytes, want %d, %d bytes", status, len(text), tc.good, len(want))
				}
			}
			if status, _ := post("{"); status != tc.refused {
				t.Errorf("status %d for a refusal, want %d", status, tc.refused)
			}
			h.outcomes(map[picker.Outcome]int64{picker.Unreported: 3})
			if models := h.seen.models; !slices.Equal(models, []string{"m", "m", "m"}) {
				t.Errorf("picked for models %q", models)
			}
		})
	}
}
