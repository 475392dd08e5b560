package server

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/reporter"
	"github.com/kvasir-dev/kvasir/internal/rpc"
	"github.com/kvasir-dev/kvasir/internal/sim/vllmsim"
	"github.com/kvasir-dev/kvasir/internal/tokens/modelfiles"
	"github.com/kvasir-dev/kvasir/internal/tokens/tokenizer"
)

// TestAPoolWithItsOwnTokenizer: ids made here are used where the engine's are the same, and only there.
func TestAPoolWithItsOwnTokenizer(t *testing.T) {
	packed, err := os.ReadFile("../../internal/tokens/tokenizer/testdata/gpt2/tokenizer.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	text := unzip(t, packed)
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "gpt2"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(root, "gpt2", "tokenizer.json"), text)
	gpt2, err := tokenizer.Load(filepath.Join(root, "gpt2"))
	if err != nil {
		t.Fatal(err)
	}
	packedText, err := os.ReadFile("../../internal/tokens/tokenizer/testdata/spm/tokenizer.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	small := unzip(t, packedText)
	spm, err := tokenizer.LoadReader(strings.NewReader(small), nil)
	if err != nil {
		t.Fatal(err)
	}
	hub := hubOf(t, text)
	directory := "{type: Directory, directory: {path: gpt2}}"
	configMap := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: files}\nbinaryData: {tokenizer.json: " + base64.StdEncoding.EncodeToString([]byte(small)) + "}\n---\n"
	for name, tc := range map[string]struct {
		text                   vllmsim.Text
		tokenizer, objects     string
		reporter               bool
		reason, source, metric string
	}{
		"the engine's own":  {gpt2, directory, "", false, "TemplateUnsupported", "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"another one":       {nil, directory, "", false, "ProbeFailed", "engine", `kvasir_tokens_mismatches_total{namespace="default",pool="m"} 1`},
		"on a volume":       {gpt2, "{type: Volume, volume: {persistentVolumeClaim: {name: c}, path: gpt2}}", "", false, "TemplateUnsupported", "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"in a ConfigMap":    {wordless{spm}, "{type: Volume, volume: {configMap: {name: files}}}", configMap, false, "TemplateUnsupported", "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"in no ConfigMap":   {wordless{spm}, "{type: Volume, volume: {configMap: {name: files}}}", "", false, "ConfigMap default/files does not exist", "engine", `kvasir_tokens_state{namespace="default",pool="m",state="FilesMissing"} 1`},
		"from a reporter":   {gpt2, "{type: Reporter, reporter: {path: /m}}", "", true, "TemplateUnsupported", "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"from a hub":        {gpt2, "{type: Hub, hub: {repository: org/gpt2}}", "", false, "files of commit " + hubCommit[:8] + " of org/gpt2, model hub", "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"not in the hub":    {gpt2, "{type: Hub}", "", false, "m at main: it answers 404", "engine", `kvasir_tokens_state{namespace="default",pool="m",state="FilesMissing"} 1`},
		"found by its root": {gpt2, "{type: Auto}", "", false, "only what is proven is used: texts: ", "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"found, but wrong":  {nil, "{hub: {repository: org/gpt2}}", "", false, "only what is proven is used: texts: case", "engine", `kvasir_tokens_state{namespace="default",pool="m",state="Failed"} 1`},
		"not found":         {gpt2, "{hub: {repository: org/none}}", "", false, "no files of the model: model hub", "engine", `kvasir_tokens_state{namespace="default",pool="m",state="NoFiles"} 1`},
		"no repository":     {gpt2, "{type: Auto}", "", false, "no files of the model: the engines have the model from", "engine", `kvasir_tokens_state{namespace="default",pool="m",state="NoFiles"} 1`},
		"no hub, reporters": {gpt2, "{type: Auto}", "", true, "files from the reporter of pod pod", "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"no hub, and wrong": {nil, "{type: Auto}", "", true, "only what is proven is used: texts: case", "engine", `kvasir_tokens_state{namespace="default",pool="m",state="Failed"} 1`},
		"no hub, nothing":   {gpt2, "{type: Auto}", "", false, "no model hub (hub.endpoint of the chart, --hub-endpoint of the picker); no reporter has offered any", "engine", `kvasir_tokens_state{namespace="default",pool="m",state="NoFiles"} 1`},
		"reporters before":  {gpt2, "{type: Auto}", "", true, "files from the reporter of pod pod", "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"the pool's choice": {gpt2, "{hub: {repository: org/gpt2}}", "", true, "files of commit " + hubCommit[:8], "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"in place of a hub": {gpt2, "{hub: {repository: org/none}}", "", true, "files from the reporter of pod pod", "exact", `kvasir_tokens_exact_texts{namespace="default",pool="m"} 1`},
		"from no reporter":  {gpt2, "{type: Reporter, reporter: {path: /m}}", "", false, "no reporter has handed", "engine", `kvasir_tokens_state{namespace="default",pool="m",state="FilesMissing"} 1`},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := vllmsim.Start(vllmsim.Config{
				ServedModelNames: []string{"m"}, Text: tc.text, SpeedUp: 1000, ModelRoot: map[string]string{"found by its root": "org/gpt2"}[name],
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
			dir := t.TempDir()
			put(t, filepath.Join(dir, "all.yaml"), tc.objects+poolText("m", "m", ", tokenizer: "+tc.tokenizer)+"---\n"+sliceText(t, "m", "pod", e))
			flags := []string{"--model-root", root, "--report-address", "127.0.0.1:0", "--report-insecure"}
			if !strings.HasPrefix(name, "no hub") {
				flags = append(flags, "--hub-endpoint", hub, "--hub-cache", t.TempDir())
			}
			p := runOn(t, dir, flags...)
			p.awaitReady()
			if tc.reporter {
				runReporter(t, reporter.Config{
					Pod: "default/pod", Subscribe: e.EventsAddr(), Replay: e.ReplayAddr(), Model: modelfiles.Source{Dir: filepath.Join(root, "gpt2")},
					Pickers: rpc.List(p.listeners.reports.Addr().String()), Dial: rpc.DialOptions{TokenInClear: true},
				})
			}
			p.eventually("the probe is over", func() bool {
				_, body := p.get(p.listeners.metrics, "/status?output=json")
				return strings.Contains(body, tc.reason)
			})
			var page string
			p.eventually("a request's tokens come from "+tc.source, func() bool { // a busy machine can exceed the first request's budget
				if status, body := p.complete("m"); status != http.StatusOK {
					t.Fatalf("status %d, %s", status, body)
				}
				_, page = p.get(p.listeners.metrics, "/metrics")
				return counted(page, fmt.Sprintf(`kvasir_tokenized_requests_total{namespace="default",pool="m",source=%q}`, tc.source))
			})
			if !strings.Contains(page, tc.metric) {
				t.Errorf("the metrics lack %s", tc.metric)
			}
		})
	}
}

const hubCommit = "0123456789abcdef0123456789abcdef01234567"

// hubOf is a model hub with a tokenizer in the repository org/gpt2.
func hubOf(t *testing.T, tokenizer string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Repo-Commit", hubCommit)
		repository, file := path.Dir(path.Dir(path.Dir(r.URL.Path))), path.Base(r.URL.Path)
		if repository != "/org/gpt2" || file != "tokenizer.json" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, tokenizer)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestFlagsAboutTheHubAreChecked: a mistake ends the start, and no message has a secret of it.
func TestFlagsAboutTheHubAreChecked(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"all":                            {[]string{"--hub-endpoint", "https://h/x", "--hub-cache", "c", "--hub-token-file", "t"}, ""},
		"a cache alone":                  {[]string{"--hub-cache", "c"}, ""},
		"a mirror":                       {[]string{"--hub-endpoint", "http://mirror", "--hub-cache", "c"}, ""},
		"no cache":                       {[]string{"--hub-endpoint", "https://h"}, "needs --hub-cache"},
		"a token and no hub":             {[]string{"--hub-token-file", "t"}, "needs --hub-endpoint"},
		"a token in clear":               {[]string{"--hub-endpoint", "http://mirror", "--hub-cache", "c", "--hub-token-file", "t"}, "needs an https"},
		"an authority in clear":          {[]string{"--hub-endpoint", "http://mirror", "--hub-cache", "c", "--hub-ca", "f"}, "needs an https"},
		"a proxy":                        {[]string{"--hub-endpoint", "https://h", "--hub-cache", "c", "--hub-proxy", "http://proxy:3128"}, ""},
		"a proxy and no hub":             {[]string{"--hub-proxy", "http://proxy:3128"}, "--hub-proxy needs --hub-endpoint"},
		"a proxy that is no URL":         {[]string{"--hub-endpoint", "https://h", "--hub-cache", "c", "--hub-proxy", "proxy:3128"}, "want http://HOST:PORT"},
		"an authority and no hub":        {[]string{"--hub-ca", "f"}, "--hub-ca needs --hub-endpoint"},
		"an authority that is not there": {[]string{"--hub-endpoint", "https://h", "--hub-cache", "c", "--hub-ca", "nowhere.pem"}, "nowhere.pem"},
		"a key for an authority":         {[]string{"--hub-endpoint", "https://h", "--hub-cache", "c", "--hub-ca", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"}, "PRIVATE KEY"},
		"no URL":                         {[]string{"--hub-endpoint", "huggingface.co", "--hub-cache", "c"}, "want https://"},
		"a token in the URL":             {[]string{"--hub-endpoint", "https://hf_secret@h", "--hub-cache", "c"}, "no user"},
		"a token in no URL too":          {[]string{"--hub-endpoint", "https://hf_secret@h:x", "--hub-cache", "c"}, "not a URL"},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			_, err := parse(append([]string{"--standalone", "x"}, tc.args...), io.Discard, &said)
			if (err == nil) != (tc.want == "") || !strings.Contains(said.String(), tc.want) || strings.Contains(said.String(), "hf_secret") || strings.Contains(said.String(), "c2VjcmV0") {
				t.Errorf("the picker says %q, want %q", said.String(), tc.want)
			}
		})
	}
}

// counted reports whether a page of metrics has a series with a value that is not 0.
func counted(page, series string) bool {
	_, value, found := strings.Cut(page, "\n"+series+" ")
	return found && !strings.HasPrefix(value, "0\n")
}

// unzip is what a compressed file holds.
func unzip(t *testing.T, packed []byte) string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// wordless is a tokenizer that has no words for a simulated engine to generate: it gets some of its own.
type wordless struct{ *tokenizer.Tokenizer }

const ownWord = " zz"

var letters = strings.NewReplacer("0", "a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6", "g", "7", "h", "8", "i", "9", "j")

func (w wordless) Encode(dst []uint32, text string, special bool) ([]uint32, error) {
	if strings.HasPrefix(text, ownWord) {
		for id := range uint32(100) {
			if text == w.Decode([]uint32{id}) {
				return append(dst, id), nil
			}
		}
	}
	return w.Tokenizer.Encode(dst, text, special)
}

func (wordless) Decode(ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		if id >= 100 {
			b.WriteByte('?')
			continue
		}
		b.WriteString(ownWord + letters.Replace(strconv.Itoa(int(id))))
	}
	return b.String()
}
