//go:build !race

package iwarptest

const raceEnabled = false
