//go:build !race

package testkit

// RaceEnabled says that the race detector looks on: everything takes several times as long.
const RaceEnabled = false
