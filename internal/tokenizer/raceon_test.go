//go:build race

package tokenizer

// raceDetector says that pools forget what is put in, to find races.
const raceDetector = true
