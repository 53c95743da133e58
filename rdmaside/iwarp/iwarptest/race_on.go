//go:build race

package iwarptest

const raceEnabled = true
