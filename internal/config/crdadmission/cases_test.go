package crdadmission

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kvasir-dev/kvasir/test/apicases"
)

func TestSpecsAreAdmittedAsByAnAPIServer(t *testing.T) {
	a := newAdmitter(t)
	for about, group := range apicases.Groups() {
		for label, tc := range group.Cases {
			t.Run(about+"/"+label, func(t *testing.T) {
				before, after := group.Texts(tc)
				var old *unstructured.Unstructured
				if before != nil {
					old = mustAdmit(t, before, nil)
				}
				_, err := a.Admit(t.Context(), after, old)
				if tc.Want == "" {
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				var refused *Error
				if !errors.As(err, &refused) {
					t.Fatalf("got the error %v, want a refusal", err)
				}
				found := slices.ContainsFunc(refused.Problems, func(p Problem) bool { return strings.Contains(p.String(), tc.Want) })
				if !found {
					t.Errorf("got %v, want %q", refused, tc.Want)
				}
			})
		}
	}
}
