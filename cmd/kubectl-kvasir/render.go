package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvasir-dev/kvasir/internal/cli/command"
	"github.com/kvasir-dev/kvasir/internal/tokens/chattemplate"
)

const aboutRender = `Renders a chat template as the engine does: one JSON object of variables per line on standard input. Each becomes one
line {"out": "..."}, or {"err": true, "message": "..."} where the template raises an exception or is not understood.`

// render is the command of that name.
func render(std stdio) *cobra.Command {
	c := command.New("render", "The prompt that a chat template makes", aboutRender)
	set := c.Flags()
	path := set.String("template", "", "file with the template")
	now := set.String("now", "", nowUsage)
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx := c.Context()
		if *path == "" {
			return command.Usage("--template is missing")
		}
		at, err := timeOf(*now)
		if err != nil {
			return err
		}
		source, err := os.ReadFile(*path)
		if err != nil {
			return fmt.Errorf("reading the template: %w", err)
		}
		r := renderer{in: chattemplate.Input{Now: at}}
		r.template, r.err = chattemplate.Parse(string(source))
		return eachLine(ctx, std, func(line []byte) (any, error) {
			out, err := r.render(ctx, line)
			return rendered{out}, err
		}, func(err error) any { return raised{Err: true, Message: err.Error()} })
	}
	return c
}

const nowUsage = "time for templates that print the date, as in 2026-11-20T08:00:00Z; default is the present"

// timeOf is the time that a flag gives.
func timeOf(text string) (time.Time, error) {
	if text == "" {
		return time.Now(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, command.Usage("--now: %v", err)
	}
	return at, nil
}

type (
	rendered struct {
		Out string `json:"out"`
	}
	raised struct {
		Err     bool   `json:"err"`
		Message string `json:"message"`
	}
)

// renderer renders one template for one context after the other.
type renderer struct {
	template *chattemplate.Template
	err      error // why there is none: every context fails, as it does in the engine
	arena    chattemplate.Arena
	in       chattemplate.Input
	buf      []byte
}

var errVars = errors.New("the variables must be a JSON object")

func (r *renderer) render(ctx context.Context, line []byte) (string, error) {
	if r.err != nil {
		return "", r.err
	}
	r.arena.Reset()
	vars, err := r.arena.DecodeJSON(line)
	if err != nil {
		return "", err
	}
	if vars.Kind() != chattemplate.KindDict {
		return "", errVars
	}
	r.in.Vars = r.in.Vars[:0]
	d := vars.Dict()
	for i := range d.Len() {
		key, value := d.At(i)
		r.in.Vars = append(r.in.Vars, chattemplate.Var{Name: key.Text(), Value: value})
	}
	r.buf, err = r.template.Render(ctx, r.buf[:0], &r.arena, &r.in)
	return string(r.buf), err
}
