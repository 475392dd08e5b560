package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/cli/live"
	"github.com/kvasir-dev/kvasir/internal/cli/view"
	"github.com/kvasir-dev/kvasir/internal/dashboard/api"
)

// mark is in every planted secret; nothing else is spelled alike.
const mark = "okapihorn"

// jwt looks like a token of a service account.
const jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJva2FwaWhvcm4ifQ.c2lnbmF0dXJl"

// planted is a cluster with secrets wherever users and programs put them.
func planted(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	secretive := map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"env":"` + mark + `"}`}
	spec := corev1.PodSpec{
		NodeName: "node-1",
		InitContainers: []corev1.Container{{
			Name: v1alpha1.ReporterContainer, Image: "kvasir/reporter", Env: []corev1.EnvVar{{Name: "TOKEN", Value: mark}},
		}},
		Containers: []corev1.Container{{
			Name: "vllm", Image: "vllm/vllm-openai", Command: []string{"sh", "-c", "export HF=" + mark + " && exec vllm serve"},
			Args: []string{
				"--model", "qwen", "--api-key", mark, mark, "--api-key=" + mark, "--hf-token", mark, "--port=8000", "--otlp=https://me:" + mark + "@host/x?sig=" + mark,
				`--kv-events-config={"enable":true}`,
			},
			Env: []corev1.EnvVar{{Name: "HF_TOKEN", Value: "hf-" + mark}, {Name: "PLAIN", Value: mark}},
		}},
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 9, Reason: "Error", Message: "prompt: " + mark}}
	pod := func(namespace, name, app string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}, Annotations: secretive},
			Spec:       *spec.DeepCopy(),
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "vllm", RestartCount: 1, State: ended, LastTerminationState: ended},
			}, InitContainerStatuses: []corev1.ContainerStatus{{Name: v1alpha1.ReporterContainer, RestartCount: 2}}},
		}
	}
	pool := &v1alpha1.InferencePool{}
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"namespace": "llm", "name": "chat", "annotations": secretive},
		"spec": map[string]any{
			"model": map[string]any{"name": "qwen"}, "selector": map[string]any{"matchLabels": map[string]any{"app": "chat"}},
			"template": map[string]any{"metadata": map[string]any{"annotations": secretive}, "spec": spec},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, pool); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		pool, pod("llm", "chat-0", "chat"), pod("llm", "chat-picker-0", "picker"), pod("kube-system", "kvasir-0", "operator"),
		&v1alpha1.RoutingPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "policy", Annotations: secretive}},
		&v1alpha1.ModelRoute{
			ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "route", Annotations: secretive},
			Spec: v1alpha1.ModelRouteSpec{Rules: []v1alpha1.ModelRouteRule{{Matches: []v1alpha1.ModelRouteMatch{{
				Headers: []v1alpha1.ModelRouteHeader{{Name: "x-key", Value: mark}},
			}}}}},
		},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "keys"}, Data: map[string][]byte{"key": []byte(mark)}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "map"}, Data: map[string]string{"key": mark}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat-picker", Annotations: secretive},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "picker"}},
		},
		&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kvasir"},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "operator"}},
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{"--reporter-image=kvasir/reporter"}}}}},
			},
		},
		&corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "llm", Name: "e"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "chat-0"}, Reason: "Failed", Message: "pulling with Bearer " + mark + "0123",
		},
		&corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "llm", Name: "of-others"},
			InvolvedObject: corev1.ObjectReference{Kind: "Job", Name: "other"}, Message: mark,
		},
	).Build()
}

// nowhere is the way to pods that cannot be reached, with an error that says too much.
func nowhere(context.Context, types.NamespacedName, int) (net.Conn, error) {
	return nil, errors.New("dialing with Bearer " + mark + "0123")
}

// files are those of an archive, by name below its directory.
func files(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for in := tar.NewReader(zip); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(header.Name, "/")
		all[name] = string(text)
	}
}

// TestNoSecretIsInTheArchive: planted in objects, pods, events and logs; and what a report needs is there.
func TestNoSecretIsInTheArchive(t *testing.T) {
	c := planted(t)
	var logged []string
	d := Dump{
		Source: &view.Source{Client: c, Access: &live.Access{Client: c, Config: &rest.Config{}, Dial: nowhere}}, Namespace: "llm",
		Now: time.Date(2026, 11, 23, 1, 2, 3, 0, time.UTC),
		Logs: func(_ context.Context, namespace, pod, container string, previous bool) ([]byte, error) {
			logged = append(logged, fmt.Sprint(namespace, "/", pod, " ", container, " ", previous))
			if container == "vllm" && strings.HasPrefix(pod, "chat-0") {
				return []byte("prompt: " + mark), nil
			}
			return []byte("a line\nAuthorization: Bearer " + mark + "01\n" + jwt + "\nsk-" + mark + "-0123\n" +
				"-----BEGIN EC PRIVATE KEY-----\n" + mark + "\n-----END EC PRIVATE KEY-----\nthe last line\n"), nil
		},
	}
	var out bytes.Buffer
	missing, err := d.Write(t.Context(), &out)
	if err != nil {
		t.Fatal(err)
	}
	all := files(t, out.Bytes())
	for name, text := range all {
		if strings.Contains(text, mark) || strings.Contains(text, jwt) {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
	for name, want := range map[string]string{
		"README.txt": "does not have", "version.yaml": "Version", "pools.yaml": "chat", "pools/llm/chat.yaml": "name: qwen",
		"policies/llm/policy.yaml": "policy", "routes/llm/route.yaml": "name: x-key", "engines/llm/chat-0/pod.yaml": "exitCode: 9", "events/llm.txt": "pod/chat-0 Failed x1: pulling",
		"engines/llm/chat-0/kvasir-reporter.log": "the last line", "engines/llm/chat-0/kvasir-reporter.previous.log": "the last line",
		"operator/kube-system/kvasir-0/pod.yaml": "node-1",
	} {
		if !strings.Contains(all[name], want) {
			t.Errorf("%s has no %q: %q", name, want, all[name])
		}
	}
	for _, want := range []string{"--model", "qwen", "--port=8000", "--api-key=REDACTED", "HF_TOKEN", `--kv-events-config={"enable":true}`} {
		if !strings.Contains(all["pools/llm/chat.yaml"], want) {
			t.Errorf("the pool has lost %q:\n%s", want, all["pools/llm/chat.yaml"])
		}
	}
	if slices.ContainsFunc(logged, func(l string) bool { return strings.HasPrefix(l, "llm/chat-0 vllm") }) {
		t.Errorf("the log of an engine was read: %v", logged)
	}
	// The pickers cannot be reached here: that is noted, and nothing is lost by it.
	if len(missing) == 0 || all["errors.txt"] == "" {
		t.Errorf("missing are %v, noted is %q", missing, all["errors.txt"])
	}
}

// TestAPickerAloneIsGathered with what it serves.
func TestAPickerAloneIsGathered(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/status":
			_ = json.NewEncoder(w).Encode(api.Status{Live: api.Live{Picker: "picker-0", Time: time.Now()}})
		case "/prefixes":
			_ = json.NewEncoder(w).Encode(api.Prefixes{Prefixes: []api.Prefix{{Hash: "abc", Pool: "chat"}}})
		case "/decisions":
			_ = json.NewEncoder(w).Encode(api.Decision{ID: 7})
		case "/metrics":
			_, _ = io.WriteString(w, "kvasir_build_info 1\n")
		}
	}))
	defer server.Close()
	p, err := live.At(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	d := Dump{Source: &view.Source{Picker: p}, Now: time.Now()}
	if missing, err := d.Write(t.Context(), &out); err != nil || len(missing) > 0 {
		t.Fatal(err, missing)
	}
	dir, all := "pickers/"+strings.ReplaceAll(p.Name, ":", "-"), files(t, out.Bytes())
	for name, want := range map[string]string{
		"/state.yaml": "picker-0", "/prefixes.yaml": "abc", "/decisions.jsonl": `"id":7`, "/metrics.txt": "kvasir_build_info 1",
	} {
		if !strings.Contains(all[dir+name], want) {
			t.Errorf("%s has no %q: %q", name, want, all[dir+name])
		}
	}
}
