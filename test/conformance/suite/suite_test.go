package suite

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/gateway-api-inference-extension/conformance"
	"sigs.k8s.io/gateway-api-inference-extension/conformance/resources"
	"sigs.k8s.io/gateway-api-inference-extension/conformance/tests"
	"sigs.k8s.io/gateway-api-inference-extension/conformance/utils/config"
	"sigs.k8s.io/gateway-api-inference-extension/conformance/utils/headers"
	inference "sigs.k8s.io/gateway-api-inference-extension/conformance/utils/kubernetes"
	gwhttp "sigs.k8s.io/gateway-api/conformance/utils/http"
	confsuite "sigs.k8s.io/gateway-api/conformance/utils/suite"
)

var update = flag.Bool("update", false, "write the table into docs/gateways.md")

// rule is the DestinationRule that the docs give for Istio, for every picker of the suite.
const rule = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: pickers, namespace: inference-conformance-app-backend}
spec:
  host: "*.inference-conformance-app-backend.svc.cluster.local"
  trafficPolicy:
    portLevelSettings:
    - port: {number: 9002}
      tls: {mode: SIMPLE, insecureSkipVerify: true}
      connectionPool:
        http: {http2MaxRequests: 100000, http1MaxPendingRequests: 100000}
        tcp: {maxConnections: 100000}
`

// faults are tests that cannot pass because of a fault of the gateway. They run with -run-test=NAME.
var faults = map[string]string{
	"GatewayWeightedAcrossTwoInferencePools": "cannot pass: Istio's route has both pools, and one of their pickers: the other is never asked",
}

// The suite of the inference extension, and beside it what it does not test.
func TestConformance(t *testing.T) {
	w := newWorld(t)
	if w.options.RunTest == "" {
		w.options.SkipTests = append(w.options.SkipTests, slices.Collect(maps.Keys(faults))...)
	}
	backend := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: resources.AppBackendNamespace}}
	_, err := w.set.CoreV1().Namespaces().Create(t.Context(), backend, metav1.CreateOptions{})
	w.must(err)
	w.apply(rule)
	confsuite.RegisterConformanceProfile(conformance.GatewayLayerProfile)
	suite, err := confsuite.NewConformanceTestSuite(w.options)
	w.must(err)
	all := append(tests.ConformanceTests[:len(tests.ConformanceTests):len(tests.ConformanceTests)], failOpen)
	results := map[string]string{}
	for i := range all {
		name, test := all[i].ShortName, all[i].Test
		all[i].Test = func(t *testing.T, s *confsuite.ConformanceTestSuite) {
			results[name] = "fails"
			defer func() { // a test that fails ends its goroutine
				if t.Failed() {
					w.dumpGateways(t)
				}
			}()
			test(t, s)
			if !t.Failed() {
				results[name] = "passes"
			}
		}
	}
	conformance.SetupConformanceTestSuite(t.Context(), t, suite, w.options, all)
	w.must(suite.Run(t, all))
	if w.options.RunTest != "" {
		return
	}
	var table strings.Builder
	fmt.Fprint(&table, "| test | result |\n|---|---|\n")
	for _, test := range all {
		fmt.Fprintf(&table, "| `%s` | %s |\n", test.ShortName, cmp.Or(results[test.ShortName], faults[test.ShortName], "not run"))
	}
	inDocs(t, table.String())
}

// failOpen is the suite's test EppUnAvailableFailOpen with the picker of the pool itself: the suite disables another one.
var failOpen = confsuite.ConformanceTest{
	ShortName:   "FailOpenOfThePoolsOwnPicker",
	Description: "Without a picker, requests to a pool with FailOpen reach any of its pods, also those with a body",
	Manifests:   tests.EppUnAvailableFailOpen.Manifests,
	Features:    tests.EppUnAvailableFailOpen.Features,
	Test: func(t *testing.T, s *confsuite.ConformanceTestSuite) {
		gateway := resources.SecondaryGatewayNN
		inference.HTTPRouteMustBeAcceptedAndResolved(t, s.Client, s.TimeoutConfig,
			types.NamespacedName{Name: "httproute-for-failopen-pool-gw", Namespace: resources.AppBackendNamespace}, gateway)
		address := inference.GetGatewayEndpoint(t, s.Client, s.TimeoutConfig, gateway)
		pods, err := inference.GetPodsWithLabel(t, s.Client, resources.AppBackendNamespace,
			map[string]string{"app": resources.SecondaryModelServerAppLabel}, s.TimeoutConfig)
		if err != nil {
			t.Fatal(err)
		}
		expected := func(method string) gwhttp.ExpectedResponse {
			r := gwhttp.Request{Host: "secondary.example.com", Path: "/failopen-pool-test", Method: method,
				Headers: map[string]string{headers.HeaderTestEppEndPointSelectionKey: pods[0].Status.PodIP}}
			if method == http.MethodPost {
				r.Body = `{"model": "conformance-fake-model", "prompt": "hello"}`
			}
			return gwhttp.ExpectedResponse{Request: r, Response: gwhttp.Response{StatusCodes: []int{http.StatusOK}},
				Backend: pods[0].Name, Namespace: resources.AppBackendNamespace}
		}
		gwhttp.MakeRequestAndExpectEventuallyConsistentResponse(t, s.RoundTripper, s.TimeoutConfig, address, expected(http.MethodPost))
		restore, err := inference.MakeServiceUnavailable(t, s.Client,
			types.NamespacedName{Name: "secondary-endpoint-picker-svc", Namespace: resources.AppBackendNamespace},
			config.DefaultInferenceExtensionTimeoutConfig().ServiceUpdateTimeout)
		t.Cleanup(restore)
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			want := expected(method)
			// The picker would choose the first pod: another one shows that it was not asked.
			for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
				got, answer, err := s.RoundTripper.CaptureRoundTrip(gwhttp.MakeRequest(t, &want, address, "HTTP", "http"))
				if err != nil || answer.StatusCode != http.StatusOK {
					t.Fatalf("%s without a picker: %+v, %v", method, answer, err)
				}
				if got.Pod != pods[0].Name {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%s: the picker was asked for %v", method, patience)
				}
			}
		}
	},
}

const page = "docs/gateways.md"

// inDocs compares the table of the docs with what was seen, or writes it with -update.
func inDocs(t *testing.T, want string) {
	t.Helper()
	const begin = "<!-- conformance: written by `make conformance-suite CONFORMANCEFLAGS=-update` -->\n\n"
	const end = "\n<!-- end of conformance -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	table, tail, ok2 := strings.Cut(rest, end)
	switch {
	case !ok || !ok2:
		t.Fatalf("%s has no place for the table", page)
	case table == want:
	case *update:
		if err := os.WriteFile(page, []byte(head+begin+want+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table in %s is not current; make conformance-suite CONFORMANCEFLAGS=-update writes it:\n%s", page, want)
	}
}
