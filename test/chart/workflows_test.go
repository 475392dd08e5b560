package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workflow is what the tests look at of a workflow.
type workflow struct {
	Permissions map[string]string
	Jobs        map[string]struct {
		Strategy struct{ Matrix map[string][]string }
		Needs    string
		Steps    []struct{ Uses, Run string }
	}
}

// Workflows run make and the scripts that there are, on few rights, with actions pinned to commits.
func TestWorkflows(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, m[1])
	}
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflows (%v)", err)
	}
	action := regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40}$`)
	version := regexp.MustCompile(`@[0-9a-f]{40} # v\d+\.\d+\.\d+\n`)
	makes := regexp.MustCompile(`(?m)^(?:sudo .* )?make (.*)$`)
	tested := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var w workflow
		if err := yaml.Unmarshal(text, &w); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		name := filepath.Base(file)
		if uses, told := strings.Count(string(text), "uses: "), len(version.FindAll(text, -1)); uses != told {
			t.Errorf("%s: of %d actions %d tell their version", name, uses, told)
		}
		if w.Permissions["contents"] != "read" || len(w.Permissions) != 1 {
			t.Errorf("%s: jobs that say nothing may %v", name, w.Permissions)
		}
		for id, job := range w.Jobs {
			if job.Needs != "" && w.Jobs[job.Needs].Steps == nil {
				t.Errorf("%s: %s needs %s, which is no job", name, id, job.Needs)
			}
			for _, step := range job.Steps {
				if step.Uses != "" && !action.MatchString(step.Uses) {
					t.Errorf("%s: %s uses %s, which is not pinned to a commit", name, id, step.Uses)
				}
				for _, m := range makes.FindAllStringSubmatch(step.Run, -1) {
					words := strings.Fields(strings.ReplaceAll(m[1], "${{ matrix.targets }}", strings.Join(job.Strategy.Matrix["targets"], " ")))
					for _, target := range words {
						switch {
						case strings.Contains(target, "="): // a variable
						case !slices.Contains(targets, target):
							t.Errorf("%s: %s makes %s, which is no target", name, id, target)
						default:
							tested[target] = true
						}
					}
				}
			}
		}
	}
	// CI runs, in parts, what `make test` runs, and the long searches.
	for _, list := range []string{"PARTS", "SEARCHES"} {
		all := regexp.MustCompile(`(?m)^` + list + ` *:= ([a-z0-9 -]+)`).FindStringSubmatch(string(makefile))
		if all == nil {
			t.Fatalf("the Makefile has no list %s", list)
		}
		for target := range strings.FieldsSeq(all[1]) {
			if !tested[target] {
				t.Errorf("no workflow runs make %s of the list %s", target, list)
			}
		}
	}
}
