package server

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"regexp"
	"testing"
)

// TestTheHelpNamesEveryAddress with its port, so that users find the page without a search.
func TestTheHelpNamesEveryAddress(t *testing.T) {
	var help bytes.Buffer
	if _, err := parse([]string{"--help"}, &help, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	for name, port := range map[string]string{
		"proxy": "8080", "health": "9003", "metrics": "9090", "ext-proc": "9002", "events": "5557", "report": "9004",
	} {
		if !regexp.MustCompile(`--` + name + `-address address\n.*\(default :` + port + `\)\n`).Match(help.Bytes()) {
			t.Errorf("the help has no port %s for --%s-address", port, name)
		}
	}
}
