package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kvasir-dev/kvasir/test/envoytest"
)

// requests: what clients and gateways get of a pool that nothing happens to.
func requests() {
	It("answers through the Service, with hits as predicted", func(ctx SpecContext) {
		l := startLoad(ctx, "http://"+w.service(ctx, poolName), poolName)
		pause(ctx, 15*time.Second)
		Expect(l.end()).To(BeEmpty())
		Expect(l.asked.Load()).To(BeNumerically(">", 50))
		m := w.metrics(ctx)
		prompt, predicted, delivered := m["kvasir_prompt_tokens_total"], m["kvasir_predicted_hit_tokens_total"], m["kvasir_delivered_hit_tokens_total"]
		AddReportEntry("tokens", fmt.Sprintf("%.0f of prompts, %.0f predicted in caches, %.0f found there", prompt, predicted, delivered))
		Expect(delivered).To(BeNumerically(">", prompt/2), "users come back to their prompts")
		Expect(m["kvasir_hit_deviation_tokens_total"]).To(BeNumerically("<", prompt/20))
	})

	It("answers through a gateway by ext_proc", func(ctx SpecContext) {
		g, err := envoytest.New(envoytest.Options{
			Pickers: []string{w.service(ctx, poolName) + ":9002"},
			Dial: []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
				InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, // as gateways do with certificates that sign themselves
			}))},
			MessageTimeout: 10 * time.Second,
		})
		Expect(err).NotTo(HaveOccurred())
		defer g.Close()
		server := httptest.NewServer(g)
		defer server.Close()
		l := startLoad(ctx, server.URL, poolName)
		pause(ctx, 10*time.Second)
		Expect(l.end()).To(BeEmpty())
		Expect(g.Violations()).To(BeEmpty())
	})

	It("follows a change of policy within seconds, without a restart", func(ctx SpecContext) {
		l := newLoad("http://" + w.service(ctx, poolName))
		before := w.restarts(ctx)
		Expect(w.misses(ctx, l, "before")).To(BeZero(), "repetitions go where the prompt is cached")
		w.kubectl(ctx, "apply", "-f", "testdata/policy.yaml")
		programmed := func(g Gomega) {
			g.Expect(w.program(ctx, filepath.Join("kube", "kubectl"), "get", "kvpolicy", "turns", "-n", namespace, "-o",
				`jsonpath={.status.ancestors[0].conditions[?(@.type=="Programmed")].status}`)).To(Equal("True"))
		}
		Eventually(programmed).Should(Succeed())
		Expect(w.misses(ctx, l, "in turns")).To(BeNumerically(">", 0), "repetitions go to all engines in turn")
		w.kubectl(ctx, "delete", "-f", "testdata/policy.yaml")
		Eventually(func() int { return w.misses(ctx, l, "after") }).Should(BeZero())
		Expect(w.restarts(ctx)).To(Equal(before))
	})
}

// misses is how many repetitions of a new prompt, one after another, found nothing in a cache. The prompt itself must find
// nothing: it begins with what no prompt has begun with.
func (w *world) misses(ctx context.Context, l *load, prompt string) (n int) {
	GinkgoHelper()
	prompt = fmt.Sprintf("%d %s", time.Now().UnixNano(), prompt)
	for i := range 6 {
		a, err := l.post("/v1/completions", map[string]any{
			"model": poolName, "max_tokens": 4, "prompt": strings.Repeat(prompt+" "+secretText+", ", 60),
		})
		Expect(err).NotTo(HaveOccurred())
		GinkgoWriter.Printf("%s: %d of %d tokens were cached\n", prompt, a.Usage.Details.Cached, a.Usage.PromptTokens)
		switch {
		case i == 0 && a.Usage.Details.Cached > 0:
			Fail(fmt.Sprintf("a prompt that no client has sent before found %d of %d tokens; the last decisions are\n%s", a.Usage.Details.Cached, a.Usage.PromptTokens, w.did(ctx, "decisions", "-o", "json")))
		case i > 0 && a.Usage.Details.Cached == 0:
			n++
		}
		pause(ctx, time.Second) // events and counters arrive
	}
	return n
}

// metrics of all pickers, summed over replicas and endpoints, by name.
func (w *world) metrics(ctx context.Context) map[string]float64 {
	GinkgoHelper()
	sums := map[string]float64{}
	token := w.kubectl(ctx, "create", "token", "metrics", "--namespace="+namespace)
	for _, p := range w.ready(ctx, pickers) {
		text := fetch(ctx, "https://"+p.Status.PodIP+":9090/metrics", token)
		expectNoSecrets("metrics of "+p.Name, text)
		for line := range strings.Lines(text) {
			name, rest, _ := strings.Cut(line, "{")
			if at := strings.LastIndexByte(rest, ' '); at >= 0 && !strings.HasPrefix(line, "#") {
				value, err := strconv.ParseFloat(strings.TrimSpace(rest[at:]), 64)
				Expect(err).NotTo(HaveOccurred())
				sums[name] += value
			}
		}
	}
	return sums
}

// fetch gets a page that is for those with a token only.
func fetch(ctx context.Context, url, token string) string {
	GinkgoHelper()
	c := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the certificate is not what is looked at
	}}
	for _, with := range []string{"", token} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		Expect(err).NotTo(HaveOccurred())
		want := http.StatusUnauthorized
		if with != "" {
			request.Header.Set("Authorization", "Bearer "+with)
			want = http.StatusOK
		}
		r, err := c.Do(request)
		Expect(err).NotTo(HaveOccurred())
		text, err := io.ReadAll(r.Body)
		Expect(err).NotTo(HaveOccurred())
		Expect(r.Body.Close()).To(Succeed())
		Expect(r.StatusCode).To(Equal(want), "%s with token %v: %s", url, with != "", text)
		if with != "" {
			return string(text)
		}
	}
	return ""
}

// expectNoSecrets fails if a text has anything of a prompt.
func expectNoSecrets(where, text string) {
	GinkgoHelper()
	if at := secret.FindStringIndex(text); at != nil {
		Fail(fmt.Sprintf("%s has of a prompt: %s", where, text[max(0, at[0]-200):min(len(text), at[1]+200)]))
	}
}

// expectNoSecretsInLogs looks at the logs of all containers but those of engines, which are not ours.
func (w *world) expectNoSecretsInLogs() {
	GinkgoHelper()
	logs, err := filepath.Glob(filepath.Join(w.state, "*", "varlog", "pods", "*", "*", "*.log"))
	Expect(err).NotTo(HaveOccurred())
	for _, name := range logs {
		container := filepath.Base(filepath.Dir(name))
		if container != "manager" && container != "picker" && container != "kvasir-reporter" {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			continue // gone with its pod
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			expectNoSecrets(name, lines.Text())
			*w.lines++
		}
		Expect(f.Close()).To(Succeed())
	}
	Expect(*w.lines).To(BeNumerically(">", 10), "there are no logs")
}
