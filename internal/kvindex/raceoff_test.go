//go:build !race

package kvindex

const raceDetector = false
