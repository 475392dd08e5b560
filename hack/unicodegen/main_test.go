package main

import (
	"bytes"
	"os"
	"testing"
)

func TestTheTablesAreCurrent(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../" + target)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Error("the tables are stale: go run ./hack/unicodegen")
	}
}
