// Command kubectl-kvasir answers questions about what the picker sees. kubectl runs it as "kubectl kvasir"; it works
// as well alone, and asks no cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}))
}

// stdio is what a program reads and writes.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

const usage = `kubectl kvasir COMMAND [flags]

  lab        compare strategies offline
  events     decode KV cache events of engines
  render     the prompt that a chat template makes
  tokenize   the token ids of texts and requests

kubectl kvasir COMMAND -h lists a command's flags.
`

// errUsage marks a wrong command line, of which the user has been told.
var errUsage = errors.New("wrong usage")

// run runs one command and returns the exit status: 0, 1 for what failed, 2 for a wrong command line.
func run(ctx context.Context, args []string, std stdio) int {
	commands := map[string]func(context.Context, []string, stdio) error{
		"events":   events,
		"lab":      labs,
		"render":   render,
		"tokenize": tokenize,
	}
	if len(args) == 0 {
		fmt.Fprint(std.err, usage)
		return 2
	}
	command, ok := commands[args[0]]
	if !ok {
		switch args[0] {
		case "help", "-h", "-help", "--help":
			fmt.Fprint(std.out, usage)
			return 0
		}
		fmt.Fprintf(std.err, "kubectl-kvasir: unknown command %q\n\n%s", args[0], usage)
		return 2
	}
	switch err := command(ctx, args[1:], std); {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	default:
		fmt.Fprintf(std.err, "kubectl-kvasir %s: %v\n", args[0], err)
		return 1
	}
}

// newFlags is the flag set of a command; about says what the command does.
func newFlags(name, about string, std stdio) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(std.err)
	set.Usage = func() {
		fmt.Fprintf(std.err, "kubectl kvasir %s [flags]\n\n%s\n\n", name, about)
		set.PrintDefaults()
	}
	return set
}

// parse reads a command line that has flags only. It has told the user of an error.
func parse(set *flag.FlagSet, args []string) error {
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return errUsage
	case set.NArg() > 0:
		return wrong(set, "unexpected argument %q", set.Arg(0))
	}
	return nil
}

// wrong tells the user what is wrong with the command line.
func wrong(set *flag.FlagSet, format string, args ...any) error {
	fmt.Fprintf(set.Output(), format+"\n", args...)
	set.Usage()
	return errUsage
}
