// Package judge decides whether the simulated engine of package vllmsim answers as vLLM does. It sends the same requests to
// an engine and records the results as a Transcript: status, headers and body of answers, the blocks that were announced,
// replays, metrics, idle connections and the end of the process. Transcripts of real engines are recorded by release in
// testdata (TestRecord of package real); the tests of this package start vllmsim as each of these releases, observe it the
// same way, and compare. The permitted differences are listed in differences.go, with the reason.
//
// A transcript contains what a router can rely on and leaves out what two engines of one release need not agree on: ids,
// times, generated text, error messages and block hashes. Hashes are replaced by their order of appearance, generated
// values by their type.
package judge
