package load

import (
	"math"
	"time"
)

// halved is what is left of 1 after so many half-lives, 2^-x, for x of at least 0: to 3 parts in a billion, which is far
// more than any weight here needs, in a third of the time of math.Exp2. A pick asks for three of them of each endpoint.
//
// The integer part of x is added to the exponent; the rest is a polynomial that equals 2^-x in the seven Chebyshev nodes of
// [0, 1].
func halved(x float64) float64 {
	if !(x < 1000) {
		return 0
	}
	n := uint64(x)
	x -= float64(n)
	p := 0.00010932892393299026
	p = p*x - 0.0012755401353185156
	p = p*x + 0.009579859972768908
	p = p*x - 0.05549093211490295
	p = p*x + 0.24022433120843853
	p = p*x - 0.6931470452096826
	p = p*x + 0.9999999986201363
	return p * math.Float64frombits((1023-n)<<52)
}

// decayed is what is left of 1 after a time in which it falls to 1/e every life; 1 where no time has passed.
func decayed(age, life time.Duration) float64 {
	if age <= 0 {
		return 1
	}
	return halved(float64(age) * (math.Log2E / float64(life)))
}
