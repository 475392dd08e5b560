// Package race reports to a test whether the race detector is on. The detector slows code down several times and makes
// every [sync.Pool] forget at random, so a test that counts allocations or processor time is skipped under it; `make unit`
// runs those tests again without it.
package race
