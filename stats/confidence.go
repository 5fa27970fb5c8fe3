package stats

import (
	"math"
	"slices"
)

// LossBound is between what ratios the loss of the path lies, to a confidence of
// level (0.95: of a hundred such bounds 95 or more hold), when lost of sent
// frames were: the exact interval of Clopper and Pearson (Biometrika 26, 1934,
// p. 404). Each frame is taken to be lost independently of the others; bursts
// make the truth wider.
//
// Where none was lost, or all were, the bound is one-sided: 0 of n is 0 to about
// 3/n at 95 %, the rule of three. Nothing sent says nothing: 0 to 1. More lost
// than sent is as all. NaN where level is not between 0 and 1.
//
// To 1 in 10^8 of its distance from lost/sent, at levels up to 0.9999 and for any
// number of frames.
func LossBound(lost, sent uint64, level float64) (lo, hi float64) {
	lost = min(lost, sent)
	alpha := 1 - level
	switch {
	case !(level > 0 && level < 1):
		return math.NaN(), math.NaN()
	case sent == 0:
		return 0, 1
	case lost == 0:
		return 0, -math.Expm1(math.Log(alpha) / float64(sent))
	case lost > sent/2: // the same of those that came: small ratios are exact, those near 1 are not
		lo, hi = LossBound(sent-lost, sent, level)
		return 1 - hi, 1 - lo
	}
	k, rest := float64(lost), float64(sent-lost)
	lo, _ = betaQuantile(k, rest+1, alpha/2)
	_, hi = betaQuantile(rest, k+1, alpha/2)
	return lo, hi
}

// MeanInterval is the mean of values, and half the width of the interval around
// it that holds the true mean to a confidence of level: Student's t, for values
// of a normal distribution, and about right for any other from some 30 on. half
// is infinite for fewer than two values, and NaN where level is not between 0
// and 1.
func MeanInterval(values []float64, level float64) (mean, half float64) {
	n := float64(len(values))
	mean = average(values)
	switch {
	case !(level > 0 && level < 1):
		return mean, math.NaN()
	case n < 2:
		return mean, math.Inf(1)
	}
	squares := 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return mean, studentT(n-1, level) * math.Sqrt(squares/(n-1)/n)
}

// studentT is the t that |T| exceeds with a probability of 1 - level.
func studentT(freedom, level float64) float64 {
	// T^2/(freedom + T^2) has a beta distribution (Abramowitz and Stegun, 26.7.1).
	x, y := betaQuantile(freedom/2, 0.5, 1-level)
	return math.Sqrt(freedom * y / x)
}

// Outliers are the indexes of the values that stand apart from the others, in
// rising order: a modified z-score above 3.5 (Iglewicz and Hoaglin, How to
// Detect and Handle Outliers, 1993), which is more than 3.5 x 1.4826 x MAD from
// the median. MAD is the median distance from the median.
//
// Where more than half of the values are the same, MAD is 0, and all others
// would stand apart. There 1.2533 x the mean distance serves in place of 1.4826 x
// MAD: both are the standard deviation of a normal distribution. Differences of
// 1 in 10^9 come from computing and are none.
func Outliers(values []float64) []int {
	mid := median(values)
	distances := make([]float64, len(values))
	for i, v := range values {
		if distances[i] = math.Abs(v - mid); distances[i] <= 1e-9*math.Abs(mid) {
			distances[i] = 0
		}
	}
	deviation := 1.4826 * median(distances)
	if deviation == 0 {
		deviation = math.Sqrt(math.Pi/2) * average(distances)
	}
	var outliers []int
	for i, d := range distances {
		if d > 3.5*deviation {
			outliers = append(outliers, i)
		}
	}
	return outliers
}

// average is 0 of nothing.
func average(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / max(1, float64(len(values)))
}

// median is 0 of nothing, and the mean of the middle two of an even number.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// seriesLimit is up to where betaQuantile adds up a series, whose length grows
// with the root of the lesser parameter: 2.5 ms at the limit. Beyond it the
// approximation is as good as 5 in 10^9 of the distance from the mean at a level
// of 0.95, as measured at the limit, and better the further on.
const seriesLimit = 1e7

// betaQuantile is the x that a beta-distributed number is below with probability
// p, and y = 1 - x, each exact where it is small.
func betaQuantile(a, b, p float64) (x, y float64) {
	if min(a, b) > seriesLimit {
		return betaQuantileNormal(a, b, p)
	}
	// Halving in u = log(x/y), in which both ends have room.
	lo, hi := -700., 700.
	for {
		u := (lo + hi) / 2
		x, y = 1/(1+math.Exp(-u)), 1/(1+math.Exp(u))
		switch {
		case u == lo || u == hi:
			return x, y
		case betaBelow(a, b, x, y) < p:
			lo = u
		default:
			hi = u
		}
	}
}

// betaBelow is the regularised incomplete beta function I_x(a, b); y is 1 - x.
func betaBelow(a, b, x, y float64) float64 {
	if x > y {
		return 1 - betaBelow(b, a, y, x)
	}
	power, over := betaPower(a, b, x), x*(a+b)-a
	switch {
	case over > 0 && power < 1e-18*over:
		return 1 // less 3 power/over at most, by the same series for I_y(b, a)
	case power < 1e-200:
		return 0 // and no series of numbers too small to get smaller
	}
	// The series of DLMF 8.17.8, with positive terms only: nothing cancels. They
	// rise as long as x is above the mean, and then fall.
	term := power / a
	sum := term
	for n := 0.; term > 1e-17*sum || (a+b+n)*x > a+1+n; n++ {
		term *= (a + b + n) * x / (a + 1 + n)
		sum += term
	}
	return min(sum, 1)
}

// betaPower is x^a (1-x)^b / B(a, b). With Stirling's formula for B, what is
// large cancels on paper: the difference of logarithms of gamma functions of
// 10^18 would not hold one right digit (C. Loader, Fast and Accurate Computation
// of Binomial Probabilities, 2000).
func betaPower(a, b, x float64) float64 {
	over := x*(a+b) - a // of x over the mean, times a+b: one rounding in both logarithms
	logX := math.Log1p(over / a)
	if over < -a/2 {
		logX = math.Log(x * (a + b) / a)
	}
	return math.Sqrt(a*b/(a+b)/(2*math.Pi)) *
		math.Exp(a*logX+b*math.Log1p(-over/b)+stirlingError(a+b)-stirlingError(a)-stirlingError(b))
}

// stirlingError is log(Gamma(z)) less Stirling's formula for it.
func stirlingError(z float64) float64 {
	if z < 20 {
		lg, _ := math.Lgamma(z)
		return lg - ((z-0.5)*math.Log(z) - z + 0.5*math.Log(2*math.Pi))
	}
	return (1./12 - (1./360-(1./1260-1./1680/(z*z))/(z*z))/(z*z)) / z
}

// betaQuantileNormal is betaQuantile for large a and b (Abramowitz and Stegun,
// 26.5.22).
func betaQuantileNormal(a, b, p float64) (x, y float64) {
	z := math.Sqrt2 * math.Erfcinv(2*p)
	lambda := (z*z - 3) / 6
	ra, rb := 1/(2*a-1), 1/(2*b-1)
	h := 2 / (ra + rb)
	w := z*math.Sqrt(h+lambda)/h - (rb-ra)*(lambda+5./6-2/(3*h))
	return a / (a + b*math.Exp(2*w)), b / (b + a*math.Exp(-2*w))
}
