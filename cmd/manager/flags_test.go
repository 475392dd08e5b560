package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"regexp"
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
		"a reporter's that is not":  {args: append(slices.Clone(images), "--reporter-log-level=loud"), want: "--reporter-log-level"},
		"a format that is not":      {args: append(slices.Clone(images), "--log-format=xml"), want: "--log-format"},
		"certificates without KEDA": {args: append(slices.Clone(images), "--keda-cert-dir=/certs"), want: "--keda-address"},
		"a CA without certificates": {args: append(slices.Clone(images), "--keda-address=:1", "--keda-client-ca=/ca"), want: "--keda-cert-dir"},
		"KEDA with certificates":    {args: append(slices.Clone(images), "--keda-address=:1", "--keda-cert-dir=/c", "--keda-client-ca=/ca")},
		"a hub":                     {args: append(slices.Clone(images), "--hub-endpoint=https://huggingface.co")},
		"a hub that is no URL":      {args: append(slices.Clone(images), "--hub-endpoint=huggingface.co"), want: "want https://"},
		"a hub behind a proxy":      {args: append(slices.Clone(images), "--hub-endpoint=https://h", "--hub-proxy=http://proxy:3128")},
		"a proxy, and no hub":       {args: append(slices.Clone(images), "--hub-proxy=http://proxy:3128"), want: "--hub-proxy needs"},
		"a proxy that is no URL":    {args: append(slices.Clone(images), "--hub-proxy=proxy:3128"), want: "want http://HOST:PORT"},
		"a proxy with a password":   {args: append(slices.Clone(images), "--hub-proxy=http://u:secret@proxy"), want: "password"},
		"an authority, and no hub":  {args: append(slices.Clone(images), "--hub-ca=x"), want: "--hub-ca: it needs an https"},
		"an authority over http":    {args: append(slices.Clone(images), "--hub-endpoint=http://h", "--hub-ca=x"), want: "--hub-ca: it needs an https"},
		"no authority":              {args: append(slices.Clone(images), "--hub-endpoint=https://h", "--hub-ca=x"), want: "--hub-ca: there is no certificate"},
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

// unreachable are flags that the chart does not set, with the reason. Its value extraArgs can set them all.
var unreachable = map[string]string{
	"version":                   "prints and exits",
	"kubeconfig":                "the operator uses the account of its pod",
	"health-address":            "the Deployment's probes ask the default port",
	"leader-election":           "the default suits any number of replicas",
	"leader-election-namespace": "the default is the operator's own namespace, where the chart grants the right",
	"token-file":                "the Deployment mounts the token at the default path",
}

// TestEveryFlagIsSetByTheChartOrIsListed keeps a flag from being one that users of the chart can neither set nor miss.
func TestEveryFlagIsSetByTheChartOrIsListed(t *testing.T) {
	text, err := os.ReadFile("../../charts/kvasir/templates/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, found := range regexp.MustCompile(`(?m)^ +- "?--([a-z-]+)=`).FindAllStringSubmatch(string(text), -1) {
		set[found[1]] = true
	}
	var help bytes.Buffer
	if _, err := parse([]string{"-h"}, &help, &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("help: %v", err)
	}
	all := map[string]bool{}
	for line := range strings.Lines(help.String()) {
		if name, ok := strings.CutPrefix(line, "  --"); ok {
			all[strings.Fields(name)[0]] = true
		}
	}
	for name := range all {
		if why := unreachable[name]; set[name] == (why != "") {
			t.Errorf("--%s: the chart sets it (%t), and it is listed as unreachable for the reason %q: want one of both", name, set[name], why)
		}
	}
	for name := range set {
		if !all[name] {
			t.Errorf("the chart sets --%s, which is no flag", name)
		}
	}
	for name := range unreachable {
		if !all[name] {
			t.Errorf("--%s is listed and is no flag", name)
		}
	}
	if len(all) < 10 || len(set) < 10 {
		t.Errorf("only the flags %v were found, and %v in the chart", all, set)
	}
}
