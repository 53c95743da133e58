//go:build race

package proxy

// raceEnabled makes call.reset look whether the call kept its own rule about seldom.
const raceEnabled = true
