// Package spelling finds the word that a person probably meant.
package spelling

import "strings"

// Nearest is the known word that differs least from a wrong one, letters' case aside; empty if none is near. Of equal ones it is
// the first.
func Nearest(wrong string, known []string) (nearest string) {
	best := max(1, len(wrong)/4) + 1
	for _, word := range known {
		if d := distance(strings.ToLower(wrong), strings.ToLower(word)); d < best {
			best, nearest = d, word
		}
	}
	return nearest
}

// distance is the number of letters to insert, delete or replace to get from a to b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, corner+1)
		}
	}
	return row[len(b)]
}
