package configs

import (
	"fmt"
	"strconv"
	"strings"
)

// A Fraction is a part of all, above 0 and up to 1. In a file it is written as 1% or 0.01.
type Fraction float64

// String returns f as a percentage.
func (f Fraction) String() string {
	if f == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(f)*100, 'g', 6, 64) + "%"
}

func parseFraction(s string) (Fraction, error) {
	number, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v > 0 && v <= 1) {
		return 0, fmt.Errorf("%q is not a share; write one above 0 and up to 1, such as 1%% or 0.01", s)
	}
	return Fraction(v), nil
}
