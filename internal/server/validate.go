package server

import (
	"context"
	"fmt"
	"io"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvasir-dev/kvasir/internal/config"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

// validate reads the configuration once and writes what is wrong with it, one line for each problem. It returns the exit
// status: 0 if all of it would be applied and a pool would be served, else 1. It opens no port and asks no engine.
func validate(ctx context.Context, o *options, stdout, stderr io.Writer) int {
	problems, summary, err := inspect(ctx, o)
	if err != nil {
		fmt.Fprintln(stderr, "picker:", err)
		return 1
	}
	for _, problem := range problems {
		fmt.Fprintln(stderr, problem)
	}
	if len(problems) > 0 {
		return 1
	}
	fmt.Fprintln(stdout, summary)
	return 0
}

// inspect returns the problems of the configuration, and a line about what it defines.
func inspect(ctx context.Context, o *options) (problems []string, summary string, err error) {
	root, _, err := keyRoot(o.keyFile)
	if err != nil {
		return nil, "", err
	}
	from, err := o.source.open(nil, o.settings(root), logr.Discard())
	if err != nil {
		return nil, "", err
	}
	if err := checkModelRoot(o.modelRoot); err != nil {
		problems = append(problems, err.Error())
	}
	state, _ := from.(files).Load(ctx)
	for i := range state.Problems {
		problems = append(problems, state.Problems[i].Error())
	}
	refused := map[types.NamespacedName]config.Refusal{}
	for _, e := range picker.PoolErrors(picker.New(picker.Options{}).Apply(state.Specs, state.RouteSpecs...)) {
		refused[keyOf(e.Namespace, e.Pool)] = config.Refusal{Err: e.Err}
		problems = append(problems, e.Error())
	}
	if why := unserved(&state, refused); why != "" && len(problems) == 0 {
		problems = append(problems, why)
	}
	endpoints := 0
	for i := range state.Specs {
		endpoints += len(state.Specs[i].Endpoints)
	}
	return problems, fmt.Sprintf("The configuration is valid: pools %d, policies %d, endpoints %d.",
		len(state.Specs), len(state.Policies), endpoints), nil
}
