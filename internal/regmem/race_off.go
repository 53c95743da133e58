//go:build !race

package regmem

const raceEnabled = false
