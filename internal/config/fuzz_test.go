package config

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/endpoint"
)

// odd files, in YAML.
var odd = []string{
	smallPool, smallPolicy, smallSlice, smallPool + "---\n" + smallSlice, "---\n---\n", "", "# nothing", "kind: [", "- a", "a: &a [*a]",
	"--- {apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {root: x}}", "\xff\xfe", "kind: List\napiVersion: v1\nitems: []",
	"kind: List\napiVersion: v1\nitems: [{kind: List, apiVersion: v1, items: []}, 7, {apiVersion: v1, kind: Secret, metadata: {name: s}}]",
	sliceText(`annotations: {kvasir.dev/start-rank: "8"}`, "IPv6", "[{name: http-1, port: 1}]", "{addresses: ['::1'], targetRef: {name: m-0}}"),
	"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {root: x}\ndata: {root: eA==}\n...\n---\nnull\n--- # x\n",
	"apiVersion: kvasir.dev/v1alpha1\nkind: InferencePool\nmetadata: {name: 7}\n",
}

// Whatever a file says, it is read or refused, and what other files say stays in force.
func TestNoFileTouchesAnother(t *testing.T) {
	for i, content := range odd {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			d := open(t, "a.yaml", smallPool)
			load(t, d)
			if err := os.WriteFile(d.file("b.yaml"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			s, _ := load(t, d)
			only(t, s)
			if again, changed := d.Load(t.Context()); changed || len(again.Problems) != len(s.Problems) {
				t.Error("the same files give another state")
			}
		})
	}
}

// FuzzDocuments: any bytes split into documents that are JSON or say why not, counted upwards, and a slice that is
// accepted can be translated: every endpoint has an identity of its own and an address.
func FuzzDocuments(f *testing.F) {
	for _, seed := range odd {
		f.Add([]byte(seed), false)
	}
	f.Add([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}} {}`), true)
	d := open(f, "a.yaml", poolWith("engine: {dataParallel: {ranks: 3}}"))
	state, _ := d.Load(f.Context())
	pool := state.Pools[0].Object
	f.Fuzz(func(t *testing.T, content []byte, asJSON bool) {
		name := "b.yaml"
		if asJSON {
			name = "b.json"
		}
		documents, err := split(name, content)
		if err != nil {
			return
		}
		last := Origin{}
		for _, doc := range documents {
			if at := doc.origin; at.Document < last.Document || at.Document == last.Document && at.Item <= last.Item {
				t.Fatalf("%v after %v", at, last)
			}
			last = doc.origin
			if doc.err != nil {
				continue
			}
			if !json.Valid(doc.raw) {
				t.Fatalf("%v is not JSON: %s", last, doc.raw)
			}
			if doc.key.Name == "" || doc.key.Kind == "" || doc.key.Namespace == "" {
				t.Fatalf("%v has no full name: %v", last, doc.key)
			}
			decodeSecret(doc.raw)
			decodeConfigMap(doc.raw)
			slice, faults := decodeSlice(doc.raw)
			if len(faults) > 0 {
				continue
			}
			endpoints, errs := Endpoints(pool, slice)
			if len(errs) == 0 && len(endpoints) != 3*len(slice.Endpoints) {
				t.Fatalf("%d endpoints of %d pods with 3 ranks", len(endpoints), len(slice.Endpoints))
			}
			seen := map[endpoint.ID]bool{}
			for _, e := range endpoints {
				if seen[e.ID] || e.ID.Pod == "" || e.Address == "" || e.EventsAddress == "" || strings.HasSuffix(e.Address, ":0") {
					t.Fatalf("endpoint %+v", e)
				}
				seen[e.ID] = true
			}
		}
	})
}

// Line numbers in errors count from the top of the file.
func TestErrorsNameTheLine(t *testing.T) {
	text := smallPool + "---\n# a comment\n" + strings.Replace(smallPolicy, "spec:", "spec: {}\nspec:", 1)
	line := 1 + strings.Count(text[:strings.LastIndex(text, "spec:")], "\n")
	_, problems := load(t, open(t, "all.yaml", text))
	wantProblem(t, problems, fmt.Sprintf("all.yaml:%d:1: RoutingPolicy default/p", line))
}
