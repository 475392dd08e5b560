package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	images := []string{"--picker-image=p", "--reporter-image=r", "--service-account=kvasir/kvasir-operator"}
	for name, tc := range map[string]struct {
		args []string
		want string // of the error; empty where there is none
	}{
		"the images":                {args: images},
		"no picker image":           {args: images[1:], want: "--picker-image is required"},
		"no reporter image":         {args: []string{images[0], images[2]}, want: "--reporter-image is required"},
		"no account":                {args: images[:2], want: "--service-account is required"},
		"an account that is not":    {args: append(slices.Clone(images[:2]), "--service-account=kvasir"), want: "NAMESPACE/NAME"},
		"two namespaces":            {args: append(slices.Clone(images), "--namespace=a", "--namespace=b", "--namespace=a")},
		"a namespace that is not":   {args: append(slices.Clone(images), "--namespace=A"), want: "lower case"},
		"a level that is not":       {args: append(slices.Clone(images), "--log-level=loud"), want: "--log-level"},
		"a picker's that is not":    {args: append(slices.Clone(images), "--picker-log-level=loud"), want: "--picker-log-level"},
		"a format that is not":      {args: append(slices.Clone(images), "--log-format=xml"), want: "--log-format"},
		"certificates without KEDA": {args: append(slices.Clone(images), "--keda-cert-dir=/certs"), want: "--keda-address"},
		"a CA without certificates": {args: append(slices.Clone(images), "--keda-address=:1", "--keda-client-ca=/ca"), want: "--keda-cert-dir"},
		"KEDA with certificates":    {args: append(slices.Clone(images), "--keda-address=:1", "--keda-cert-dir=/c", "--keda-client-ca=/ca")},
		"a wrong flag alone":        {args: []string{"--log-format=xml"}, want: "--log-format"},
		"an argument":               {args: append(slices.Clone(images), "now"), want: "unexpected argument"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(tc.args, io.Discard, io.Discard)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("got %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if o.leaderElectionNamespace != "kvasir" {
				t.Errorf("the Lease is in the namespace %q", o.leaderElectionNamespace)
			}
			if strings.Contains(name, "two") && !slices.Equal(o.namespaces, []string{"a", "b"}) {
				t.Errorf("namespaces %v", o.namespaces)
			}
		})
	}
}
