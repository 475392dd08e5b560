package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
)

// allFlags are the names of all flags.
func allFlags(t *testing.T) []string {
	t.Helper()
	var text bytes.Buffer
	if _, err := parse([]string{"-h"}, &text, &text); err != flag.ErrHelp { //nolint:errorlint // as the flag package says
		t.Fatalf("help: %v", err)
	}
	var names []string
	for _, line := range strings.Split(text.String(), "\n") {
		if name, ok := strings.CutPrefix(line, "  --"); ok {
			names = append(names, strings.Fields(name)[0])
		}
	}
	return names
}

func TestTheDocumentationNamesEveryFlag(t *testing.T) {
	text, err := os.ReadFile("../../docs/reporter.md")
	if err != nil {
		t.Fatal(err)
	}
	names := allFlags(t)
	if len(names) < 10 {
		t.Fatalf("only the flags %v were found", names)
	}
	for _, name := range names {
		if !strings.Contains(string(text), "`--"+name+"`") {
			t.Errorf("docs/reporter.md says nothing of --%s", name)
		}
	}
}

func TestFlagsAreChecked(t *testing.T) {
	good := []string{"--pod", "p", "--events-listen", "127.0.0.1:0", "--pickers", "127.0.0.1:1", "--insecure"}
	if _, err := parse(good, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no pod":                              {[]string{"--pod", ""}, "--pod"},
		"no publisher":                        {[]string{"--events-listen", ""}, "--events-listen"},
		"two publishers":                      {[]string{"--events-connect", "h:1"}, "--events-listen and --events-connect exclude each other"},
		"no picker":                           {[]string{"--pickers", ""}, "--pickers"},
		"pickers twice":                       {[]string{"--picker-service", "h:1"}, "--pickers and --picker-service exclude each other"},
		"a publisher without a port":          {[]string{"--events-listen", "", "--events-connect", "h"}, `--events-connect "h" is not HOST:PORT`},
		"replays without a port":              {[]string{"--replay", "h"}, `--replay "h" is not HOST:PORT`},
		"metrics of another protocol":         {[]string{"--engine-metrics", "http://a:1/metrics,ftp://b"}, `--engine-metrics "ftp://b" is not http://`},
		"metrics without a protocol":          {[]string{"--engine-metrics", "127.0.0.1:8000/metrics"}, "--engine-metrics"},
		"another engine":                      {[]string{"--engine", "vllm"}, `--engine "vllm": want VLLM or SGLang`},
		"a picker without a port":             {[]string{"--pickers", "h:1,h"}, "--pickers"},
		"a token in clear":                    {[]string{"--token-file", "t"}, "--insecure"},
		"two proofs":                          {[]string{"--token-file", "t", "--secret-file", "s"}, "exclude each other"},
		"an unknown level":                    {[]string{"--log-level", "loud"}, "--log-level"},
		"an unknown format":                   {[]string{"--log-format", "xml"}, "--log-format"},
		"something that is no flag":           {[]string{"x"}, "unexpected"},
		"a time for a pod that does not wait": {[]string{"--drain-settle", "1s"}, "--drain-settle needs --drain-address"},
		"an end for a pod that does not wait": {[]string{"--drain-deadline", "1s"}, "--drain-deadline needs --drain-address"},
		"a name without TLS to pickers":       {[]string{"--picker-name", "n"}, "--picker-name is for TLS"},
		"a CA without TLS to the engine":      {[]string{"--engine-ca", "f"}, "--engine-ca is for TLS"},
		"a name without TLS to the engine":    {[]string{"--engine-name", "n"}, "--engine-name is for TLS"},
		"no check without TLS to the engine":  {[]string{"--engine-unchecked"}, "--engine-unchecked is for TLS"},
		"a key without a certificate":         {[]string{"--insecure=false", "--client-key", "k"}, "--client-key needs --client-cert"},
		"a certificate without a key":         {[]string{"--insecure=false", "--client-cert", "c"}, "--client-cert needs --client-key"},
		"no rank":                             {[]string{"--ranks", "0"}, "--ranks must not be 0"},
		"a rank below the first":              {[]string{"--first-rank", "-1"}, "--first-rank must not be -1"},
		"a port without an engine":            {[]string{"--serve-address", ":8000"}, "--serve-address needs --serve-engine"},
		"an engine without a port":            {[]string{"--serve-engine", "http://127.0.0.1:8200"}, "--serve-engine needs --serve-address"},
		"an engine that is no URL":            {[]string{"--serve-address", ":1", "--serve-engine", "127.0.0.1:8200"}, `--serve-engine "127.0.0.1:8200" is not http://HOST:PORT`},
		"an engine below a path":              {[]string{"--serve-address", ":1", "--serve-engine", "http://h:1/v1"}, "is not http://HOST:PORT"},
		"an engine without its port":          {[]string{"--serve-address", ":1", "--serve-engine", "http://h"}, "is not http://HOST:PORT"},
		"a certificate of no port":            {[]string{"--serve-cert", "c", "--serve-key", "k"}, "need --serve-address"},
		"a certificate without its key":       {[]string{"--serve-address", ":1", "--serve-engine", "http://h:1", "--serve-cert", "c"}, "--serve-cert and --serve-key need each other"},
		"no memory for bodies":                {[]string{"--serve-address", ":1", "--serve-engine", "http://h:1", "--serve-memory", "0"}, "--serve-memory"},
		"memory for no port":                  {[]string{"--serve-memory", "7"}, "--serve-memory needs --serve-address"},
		"a port that is none":                 {[]string{"--serve-address", "x", "--serve-engine", "http://h:1"}, "--serve-address"},
		"a CA that cannot be read":            {[]string{"--insecure=false", "--picker-ca", "/nowhere"}, "CA"},
	} {
		t.Run(name, func(t *testing.T) {
			var text bytes.Buffer
			if _, err := parse(append(append([]string(nil), good...), tc.args...), &text, &text); err == nil || !strings.Contains(text.String(), tc.want) {
				t.Errorf("error %v, said %q, want %q", err, text.String(), tc.want)
			}
		})
	}
}
