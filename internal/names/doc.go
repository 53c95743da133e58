// Package names learns from the Calls and Replies of NFS which file and which export a file handle stands for, and
// counts which are used most, by whom.
//
// A [Watch] is a Tap. On the loops it only copies messages (queue.go). Whoever asks reads the copies first, and a
// goroutine reads them where nobody asks for a while, or a queue is half full: parse.go finds what they say, table.go
// keeps names, exports.go file systems, hot.go counts. handover.go gives what is known to the process that takes over.
// Everything is bounded, and no Call waits for it.
//
// # What it can know
//
// A handle says nothing by itself. Its name comes from the Call that has looked it up, so the names of files that
// clients have opened before the bridge began are not known. A file has the name that it was given last, whatever
// links there are. Messages under krb5p are encrypted.
package names
