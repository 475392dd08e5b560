package flags

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
)

func set() (*flag.FlagSet, *Program) {
	f := flag.NewFlagSet("daemon", flag.ContinueOnError)
	f.String("report-address", ":1", "`address` for reporters")
	f.String("log-level", "info", "what is logged")
	f.Int("workers", 0, "how many")
	f.Bool("open", false, "no key")
	return f, &Program{Name: "daemon", About: "Daemon waits.", Example: "daemon --open",
		Groups: []Group{{"Logs", []string{"log-"}}, {"Reports", []string{"report-"}}}}
}

func TestHelpGoesToStdoutInGroups(t *testing.T) {
	var stdout, stderr bytes.Buffer
	f, p := set()
	if err := Parse(f, p, []string{"--help"}, &stdout, &stderr); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("error %v, want flag.ErrHelp", err)
	}
	const want = `Daemon waits.

Usage: daemon [flags]

Example:
  daemon --open

Logs:
  --log-level string
        what is logged (default info)

Reports:
  --report-address address
        address for reporters (default :1)

Other flags:
  --open
        no key
  --workers int
        how many
`
	if stdout.String() != want || stderr.Len() > 0 {
		t.Errorf("help %q, stderr %q; want %q", stdout.String(), stderr.String(), want)
	}
}

func TestAMistakeIsOneLine(t *testing.T) {
	for name, tc := range map[string]struct{ arg, want string }{
		"a typo":          {"--log-leve=x", "daemon: unknown flag --log-leve, did you mean --log-level?; daemon --help lists the flags\n"},
		"an unknown flag": {"--frobnicate", "daemon: unknown flag --frobnicate; daemon --help lists the flags\n"},
		"a wrong value":   {"--workers=x", "daemon: invalid value \"x\" for --workers: want a whole number; daemon --help lists the flags\n"},
		"no unit":         {"--wait=5", "daemon: invalid value \"5\" for --wait: want a time with its unit, such as 500ms, 10s or 5m; daemon --help lists the flags\n"},
		"no value":        {"--workers", "daemon: flag needs an argument: --workers; daemon --help lists the flags\n"},
		"a wrong boolean": {"--open=x", "daemon: invalid boolean value \"x\" for --open: want true or false; daemon --help lists the flags\n"},
	} {
		var stdout, stderr bytes.Buffer
		f, p := set()
		f.Duration("wait", 0, "how long")
		if err := Parse(f, p, []string{tc.arg}, &stdout, &stderr); err == nil || stderr.String() != tc.want || stdout.Len() > 0 {
			t.Errorf("%s: error %v, stderr %q, stdout %q; want %q", name, err, stderr.String(), stdout.String(), tc.want)
		}
	}
}

func TestArgumentsAreRead(t *testing.T) {
	f, p := set()
	if err := Parse(f, p, []string{"--workers", "3", "rest"}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	if f.Lookup("workers").Value.String() != "3" || f.Arg(0) != "rest" {
		t.Error("arguments are lost")
	}
}

func TestNoDefaultOfAFlagThatIsOff(t *testing.T) {
	if strings.Contains(line(&flag.Flag{Name: "x", DefValue: "false"}), "default") {
		t.Error("the default of a switch is named")
	}
}
