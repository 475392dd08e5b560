package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Grafana ignores what it does not know, without a word: a misspelt option is found here or by the eye.
func TestDashboardsFollowGrafanasSchema(t *testing.T) {
	files, err := filepath.Glob("../../config/monitoring/dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards (%v)", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := panels(text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for from, to := range map[string]string{
			`"gridPos"`: `"gridpos"`, `"displayMode"`: `"displaymode"`, `"expr"`: `"expression"`, `"reduceOptions"`: `"reduceoptions"`,
		} {
			if !strings.Contains(string(text), from) {
				continue
			}
			if _, err := panels([]byte(strings.Replace(string(text), from, to, 1))); err == nil {
				t.Errorf("%s: %s for %s is not noticed", file, to, from)
			}
		}
	}
}
