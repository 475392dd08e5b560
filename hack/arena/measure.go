//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// counters are an engine's own: tokens looked up in its prefix cache, and found there.
type counters struct{ queries, hits float64 }

// readCounters sums the counters of the engines that answer.
func readCounters(ctx context.Context, urls []string) counters {
	var sum counters
	for _, url := range urls {
		c, err := scrape(ctx, url+"/metrics")
		if err != nil {
			continue // a killed engine: its counters were read before
		}
		sum.queries += c.queries
		sum.hits += c.hits
	}
	return sum
}

func scrape(ctx context.Context, url string) (c counters, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return c, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return c, err
	}
	defer resp.Body.Close() // only read
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), "{")
		_, value, found := strings.Cut(rest, "} ")
		if !found {
			continue
		}
		var into *float64
		switch name {
		case "vllm:prefix_cache_queries_total":
			into = &c.queries
		case "vllm:prefix_cache_hits_total":
			into = &c.hits
		default:
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return c, fmt.Errorf("reading the counter %s: %w", name, err)
		}
		*into += v
	}
	return c, lines.Err()
}

// cpuOf is the CPU time that a process has used, in steps of 10 ms. It is 0 where /proc does not have it.
func cpuOf(pid int) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	ticks := 0
	for _, i := range []int{11, 12} { // utime, stime
		if i < len(fields) {
			n, _ := strconv.Atoi(fields[i])
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memoryOf is the most that was resident of a process, in bytes. It is 0 where /proc does not have it.
func memoryOf(pid int) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n << 10
}
