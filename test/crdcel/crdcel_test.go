// Package crdcel holds the definitions of kvasir.dev against a real API server: each case of test/apicases, which breaks
// and keeps every rule and leaves every field to its default, must have its verdict there, and the verdict, the message
// and the object with its defaults must be those that internal/config/crdadmission finds without a server.
package crdcel

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kvasir-dev/kvasir/internal/config/crdadmission"
	"github.com/kvasir-dev/kvasir/test/apicases"
	"github.com/kvasir-dev/kvasir/test/kube"
)

func TestDefinitions(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Definitions")
}

var (
	server   client.Client
	admitter *crdadmission.Admitter
)

var _ = BeforeSuite(func() {
	cluster, err := kube.Start(kube.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)
	cluster.Config.QPS = -1 // no limit
	server, err = client.New(cluster.Config, client.Options{FieldValidation: metav1.FieldValidationStrict})
	Expect(err).NotTo(HaveOccurred())
	admitter, err = crdadmission.New()
	Expect(err).NotTo(HaveOccurred())
})

var _ = Describe("The definitions", func() {
	groups := apicases.Groups()
	for _, about := range slices.Sorted(maps.Keys(groups)) {
		group := groups[about]
		var entries []TableEntry
		for _, label := range slices.Sorted(maps.Keys(group.Cases)) {
			entries = append(entries, Entry(label, group.Cases[label]))
		}
		DescribeTable(about, func(ctx SpecContext, tc apicases.Case) { check(ctx, group, tc) }, entries)
	}
})

// check asks the API server and the admission without a server.
func check(ctx SpecContext, group apicases.Group, tc apicases.Case) {
	GinkgoHelper()
	before, after := group.Texts(tc)
	object, err := decode(after)
	Expect(err).NotTo(HaveOccurred())
	var old *unstructured.Unstructured
	if before == nil {
		err = server.Create(ctx, object, client.DryRunAll)
	} else {
		stored, decoded := decode(before)
		Expect(decoded).NotTo(HaveOccurred())
		Expect(server.Create(ctx, stored)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(server.Delete(ctx, stored)).To(Succeed()) })
		old, decoded = admitter.Admit(ctx, before, nil)
		Expect(decoded).NotTo(HaveOccurred())
		object.SetResourceVersion(stored.GetResourceVersion())
		err = server.Update(ctx, object, client.DryRunAll)
	}
	without, refusal := admitter.Admit(ctx, after, old)

	if tc.Want == "" {
		Expect(err).NotTo(HaveOccurred())
		Expect(refusal).NotTo(HaveOccurred())
		Expect(object.Object["spec"]).To(Equal(without.Object["spec"]))
		return
	}
	Expect(err).To(MatchError(ContainSubstring(tc.Want)))
	var refused *crdadmission.Error
	Expect(errors.As(refusal, &refused)).To(BeTrue(), "%v", refusal)
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return // the server could not read the object, and says so in its own words
	}
	Expect(ours(refused)).To(ConsistOf(theirs(status.Status().Details.Causes)))
}

// The two sides word one thing differently: that rules were not checked. The server makes a problem of its own of it.
const (
	uncheckedHere  = " (the rules cannot be checked before this is mended)"
	uncheckedThere = "some validation rules were not checked"
)

func ours(refused *crdadmission.Error) []string {
	var all []string
	for _, problem := range refused.Problems {
		all = append(all, strings.TrimSuffix(problem.String(), uncheckedHere))
	}
	return all
}

func theirs(causes []metav1.StatusCause) []string {
	var all []string
	for _, cause := range causes {
		field := strings.TrimPrefix(cause.Field, "<nil>") // the entire object
		switch {
		case strings.Contains(cause.Message, uncheckedThere):
		case strings.HasPrefix(field, "."): // of the scale subresource, which repeats what the schema says
		case field == "":
			all = append(all, cause.Message)
		default:
			all = append(all, field+": "+cause.Message)
		}
	}
	return all
}

func decode(text []byte) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	return o, yaml.Unmarshal(text, &o.Object)
}
