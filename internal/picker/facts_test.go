package picker

import (
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/internal/tenant"
)

// TestRecordsNameTenants whose names are not text of a client: those of Secrets, of tokens that an issuer has signed, and of a gateway.
func TestRecordsNameTenants(t *testing.T) {
	entry, err := tenant.Parse("acme", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	listed, _ := tenant.NewDirectory([]tenant.Entry{entry})
	issuer := &tenant.Issuer{URL: "https://idp.example"}
	for name, tc := range map[string]struct {
		spec         *TenantsSpec
		tenant, want string
	}{
		"no tenants":                        {nil, "acme", ""},
		"none":                              {&TenantsSpec{Known: listed}, "", ""},
		"in a Secret":                       {&TenantsSpec{Known: listed}, "acme", "acme"},
		"by a header, in no Secret":         {&TenantsSpec{Header: "x", Known: listed}, "small", "other"},
		"by a header, without Secrets":      {&TenantsSpec{Header: "x"}, "small", "small"},
		"by a token, in a Secret":           {&TenantsSpec{Issuer: issuer, Known: listed}, "acme", "acme"},
		"by a token, in no Secret":          {&TenantsSpec{Issuer: issuer, Known: listed}, "small", "other"},
		"by a token, without Secrets":       {&TenantsSpec{Issuer: issuer}, "small", "small"},
		"by a token, with a line end":       {&TenantsSpec{Issuer: issuer}, "sm\nall", "other"},
		"by a token, with a very long name": {&TenantsSpec{Issuer: issuer}, strings.Repeat("x", tenant.MaxName+1), "other"},
	} {
		if got := tc.spec.shown(tc.tenant); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
