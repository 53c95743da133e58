//go:build !race

package main

// raceEnabled says that memory is not what it is without the race detector.
const raceEnabled = false
