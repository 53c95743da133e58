//go:build race

package regmem

const raceEnabled = true
