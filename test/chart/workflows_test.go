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
		Steps    []struct {
			Uses, Run string
			Env       map[string]string
		}
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
	tested, required := map[string]bool{}, map[string]bool{}
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
				for name, value := range step.Env {
					required[name] = required[name] || value == "1"
				}
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
	// The workflows run, in parts, what .ci/run runs: what `make test` runs, the long searches, and what both name.
	script, err := os.ReadFile(filepath.Join(root, ".ci", "run"))
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^ *#.*$`).ReplaceAllString(string(script), "")
	var wanted []string
	for _, m := range regexp.MustCompile(`\bmake (?:-s )?([a-z0-9-]+)`).FindAllStringSubmatch(commands, -1) {
		list := regexp.MustCompile(`(?m)^` + strings.ToUpper(m[1]) + ` *:= ([a-z0-9 -]+)`).FindStringSubmatch(string(makefile))
		if list == nil {
			wanted = append(wanted, m[1])
			continue
		}
		wanted = append(wanted, strings.Fields(list[1])...)
	}
	for _, target := range append(wanted, "unit", "fuzz", "test-envoy") {
		if !tested[target] {
			t.Errorf("no workflow runs make %s, which .ci/run runs", target)
		}
	}
	// What is skipped where it cannot be installed is a failure in both. npm is on the machines of the workflows only.
	for _, name := range append(regexp.MustCompile(`KVASIR_\w+_REQUIRED`).FindAllString(commands, -1), "KVASIR_AXE_REQUIRED") {
		if !required[name] {
			t.Errorf("no job of a workflow sets %s", name)
		}
	}
}
