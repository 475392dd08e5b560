//go:build !race

package picker

// raceDetector: the tests run under it, which makes sync.Pool drop things at random.
const raceDetector = false
