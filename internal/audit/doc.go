// Package audit writes a line for each operation of NFS that changes something, opens a file or is denied: who has asked
// for it, what it is about, and what became of it.
//
// A [Log] is a Tap. The loops read each Call and its Reply where they are, without a copy, and keep what the lines need
// (parse.go, compound.go). When a Call is over, it goes into a queue, and one goroutine writes the lines (log.go, line.go).
// No Call waits for it: what has no room, or cannot be written, is counted, and the log itself says how many lines it
// lacks.
//
// # Exactly once
//
// The Tap is told of each Call once when it is over, however often the bridge has sent it. A Call that repeats one in
// flight has no lines: the other one has them, or it has been sent in the place of the other one, which has none then.
package audit
