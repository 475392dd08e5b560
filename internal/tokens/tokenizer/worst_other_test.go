//go:build !linux

package tokenizer

import "testing"

var worst []string

const fewWorst = 0

func testWorst(*testing.T, *Tokenizer, []string) {}
