package placement

import (
	"fmt"
	"strings"
)

// micros are the digits behind the point that a price keeps.
const micros = 6

// ParsePrice reads a decimal number of at least 0 with at most 8 digits before and 6 behind the point, "9.80", as
// millionths.
func ParsePrice(s string) (int64, error) {
	whole, part, point := strings.Cut(s, ".")
	if len(whole) < 1 || len(whole) > 8 || point && len(part) < 1 || len(part) > micros {
		return 0, fmt.Errorf("price %.20q: want a decimal number such as 9.80, at most 8 digits and 6 behind the point", s)
	}
	price := int64(0)
	for _, c := range whole + part + strings.Repeat("0", micros-len(part)) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("price %.20q: want a decimal number such as 9.80", s)
		}
		price = price*10 + int64(c-'0')
	}
	return price, nil
}
