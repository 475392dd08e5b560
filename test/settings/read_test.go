package settings

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvasir-dev/kvasir/api/v1alpha1"
	"github.com/kvasir-dev/kvasir/internal/picker"
)

const module = "github.com/kvasir-dev/kvasir/"

// listedPackage is a package that go list has listed.
type listedPackage struct {
	dir, export string
	files       []string
}

// packages lists what the operator and the picker are built from, with the export data of each.
func packages(t *testing.T) map[string]listedPackage {
	t.Helper()
	const format = `{{.ImportPath}}{{"\t"}}{{.Dir}}{{"\t"}}{{.Export}}{{"\t"}}{{range .GoFiles}}{{.}} {{end}}`
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", format, "./cmd/manager", "./cmd/picker")
	cmd.Dir = "../.."
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, problems.String())
	}
	all := map[string]listedPackage{}
	for line := range strings.Lines(string(out)) {
		part := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		all[part[0]] = listedPackage{dir: part[1], export: part[2], files: strings.Fields(part[3])}
	}
	return all
}

// TestTheListedPackagesReadTheirFields: a package of actedOn has the expression that reads the field, and is part of the operator
// or the picker.
func TestTheListedPackagesReadTheirFields(t *testing.T) {
	t.Parallel()
	all := packages(t)
	reads := map[string]map[string]bool{}
	for name, where := range actedOn {
		if reads[where] == nil {
			reads[where] = readsOf(t, all, module+where)
		}
		if owner := owner(t, name); !reads[where][owner] {
			t.Errorf("%s is listed with %s, which does not read %s", name, where, owner)
		}
	}
}

// readsOf are the fields of the API's types, as Type.Field, that a package's code names.
func readsOf(t *testing.T, all map[string]listedPackage, path string) map[string]bool {
	t.Helper()
	read := map[string]bool{}
	for name := range named(t, all, path) {
		if f, ok := strings.CutPrefix(name, module+"api/v1alpha1."); ok {
			read[f] = true
		}
	}
	return read
}

// named are the fields of structs that a package's code names, as path.Type.Field, unless it only assigns to them.
func named(t *testing.T, all map[string]listedPackage, path string) map[string]bool {
	t.Helper()
	pkg, ok := all[path]
	if !ok {
		t.Fatalf("%s is part of neither the operator nor the picker", path)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range pkg.files {
		file, err := parser.ParseFile(fset, filepath.Join(pkg.dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	imported := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		dep, ok := all[path]
		if !ok {
			return nil, fmt.Errorf("%s is not listed", path)
		}
		return os.Open(dep.export)
	})
	info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
	if _, err := (&types.Config{Importer: imported}).Check(path, fset, files, info); err != nil {
		t.Fatal(err)
	}
	assigned := map[ast.Expr]bool{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && a.Tok == token.ASSIGN {
				for _, left := range a.Lhs {
					assigned[left] = true
				}
			}
			return true
		})
	}
	read := map[string]bool{}
	for expression, s := range info.Selections {
		f, ok := s.Obj().(*types.Var)
		if !ok || f.Pkg() == nil || assigned[expression] {
			continue
		}
		from := s.Recv()
		if pointer, is := from.(*types.Pointer); is {
			from = pointer.Elem()
		}
		if of, is := from.(*types.Named); is && of.Obj().Pkg() != nil {
			read[of.Obj().Pkg().Path()+"."+of.Obj().Name()+"."+f.Name()] = true
		}
	}
	return read
}

// translated are fields of the configuration that only internal/config reads, with the reason.
var translated = map[string]string{
	module + "internal/picker.Spec.Wire":          "each endpoint gets it, where it is read",
	module + "internal/endpoint.Endpoint.Serving": "requests go only to endpoints that are ready: it is there so that an endpoint says what its EndpointSlice says",
}

// TestWhatIsConfiguredIsRead: a program reads every field of the configuration that is made of the objects. An effect on the
// configuration is then one on a program.
func TestWhatIsConfiguredIsRead(t *testing.T) {
	t.Parallel()
	const translation = module + "internal/config"
	all, read := packages(t), map[string]bool{}
	for path := range all {
		if strings.HasPrefix(path, module) && path != translation {
			maps.Copy(read, named(t, all, path))
		}
	}
	unread := maps.Clone(translated)
	fields := configured(reflect.TypeFor[picker.Spec](), map[reflect.Type]bool{})
	for _, name := range fields {
		_, listed := translated[name]
		delete(unread, name)
		if read[name] == listed {
			t.Errorf("%s: a program reads it: %t, and it is listed as one that the translation itself uses: %t. Want one of both", name, read[name], listed)
		}
	}
	for name := range unread {
		t.Errorf("%s is listed and is no field", name)
	}
	if len(fields) < 50 {
		t.Errorf("only %d fields were found", len(fields))
	}
}

// configured are the fields of a struct of this module and of those that it holds, as path.Type.Field.
func configured(of reflect.Type, seen map[reflect.Type]bool) (all []string) {
	for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array}, of.Kind()) {
		of = of.Elem()
	}
	if seen[of] || of.Kind() != reflect.Struct || !strings.HasPrefix(of.PkgPath(), module) {
		return nil
	}
	seen[of] = true
	for f := range of.Fields() {
		if f.IsExported() {
			all = append(all, of.PkgPath()+"."+of.Name()+"."+f.Name)
			all = append(all, configured(f.Type, seen)...)
		}
	}
	return all
}

// owner is the field of a Go type that a path of the API names, as Type.Field.
func owner(t *testing.T, name string) string {
	t.Helper()
	kind, path, _ := strings.Cut(name, ".")
	now := map[string]reflect.Type{
		v1alpha1.KindInferencePool: reflect.TypeFor[v1alpha1.InferencePoolSpec](), v1alpha1.KindRoutingPolicy: reflect.TypeFor[v1alpha1.RoutingPolicySpec](),
		v1alpha1.KindPickerFleet: reflect.TypeFor[v1alpha1.PickerFleetSpec](),
	}[kind]
	found := ""
	for part := range strings.SplitSeq(path, ".") {
		if part == "[]" {
			continue
		}
		for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice}, now.Kind()) {
			now = now.Elem()
		}
		i := slices.IndexFunc(reflect.VisibleFields(now), func(f reflect.StructField) bool {
			json, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return json == part
		})
		if i < 0 {
			t.Fatalf("%s: %s has no field %s", name, now, part)
		}
		f := reflect.VisibleFields(now)[i]
		found, now = now.Name()+"."+f.Name, f.Type
	}
	return found
}
