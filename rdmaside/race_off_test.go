//go:build !race

package rdmaside

const raceEnabled = false
