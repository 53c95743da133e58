// Package harden takes from this process what the bridge has no use for, so that a fault in a parser or in
// a library leads nowhere. There are three restrictions, each for the life of the process and of all that
// it starts:
//
//   - Core dumps: the kernel writes none, and other processes of the same user cannot read this
//     one's memory.
//   - Files: the process reaches only the directories that [Needs] names (Landlock).
//   - System calls: those of [refused] fail with EPERM (seccomp).
//
// Each is best effort: kernels and containers that lack one leave it out, and [Apply] says so. None costs
// anything per Call: Landlock looks at files when they are opened, and the kernel knows which system
// calls the filter always allows.
package harden

import (
	"os"
	"strconv"
)

// The names of restrictions.
const (
	CoreDumps   = "core dumps"
	Files       = "files"
	SystemCalls = "system calls"
)

// A Restriction is something that is taken from the process.
type Restriction struct {
	Name string
	Err  error // why it is not in force; nil if it is
}

// generation is an environment variable that counts the processes, each started by the one before it, whose
// restrictions this process has already. The kernel has room for a limited number of them on top of one another.
const generation = "RDMABRIDGE_HARDENED"

// maxGeneration is the last one that adds restrictions of its own. Landlock has room for 16.
const maxGeneration = 8

// Apply restricts the process as far as the kernel can.
func Apply(n *Needs) []Restriction {
	all := []Restriction{{CoreDumps, noDumps()}}
	inherited, _ := strconv.Atoi(os.Getenv(generation))
	if inherited >= maxGeneration {
		return append(all, Restriction{Name: Files}, Restriction{Name: SystemCalls}) // those of the processes before
	}
	_ = os.Setenv(generation, strconv.Itoa(inherited+1)) // for a process that this one starts
	return append(all, Restriction{Files, restrictFiles(n)}, Restriction{SystemCalls, refuseCalls(n.Program == "")})
}
