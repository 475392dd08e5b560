//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/kvasir-dev/kvasir/internal/sim/trace"
)

// cut writes a part of a trace, in the form of the slice in the repository.
func cut(_ context.Context, args []string, stdout, stderr io.Writer) error {
	set := flag.NewFlagSet("demo cut", flag.ContinueOnError)
	set.SetOutput(stderr)
	from := set.String("from", "", "the whole trace, one JSON object a line, compressed with gzip or not")
	to := set.String("to", "", "the file to write, compressed with gzip")
	start := set.Duration("start", trace.SliceFrom, "where the part begins")
	length := set.Duration("length", trace.SliceFor, "how long it is")
	if err := set.Parse(args); err != nil {
		return err
	}
	if *from == "" || *to == "" || set.NArg() > 0 {
		return errors.New("cut needs --from and --to, and nothing else")
	}
	in, err := os.Open(*from)
	if err != nil {
		return fmt.Errorf("cutting a trace: %w", err)
	}
	defer in.Close() // only read
	list, err := trace.ReadGzip(in)
	if err != nil {
		return err
	}
	part := trace.Cut(list, *start, *length)
	if err := writeFile(*to, func(w io.Writer) error { return trace.WriteGzip(w, part) }); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%d of %d requests written to %s\n", len(part), len(list), *to)
	return err
}
