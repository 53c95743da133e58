// Package cli is what the programs of this project have in common as commands: how does a command line become an exit
// code, and how does a program describe itself?
//
// # Operation
//
// NewRoot makes the command that a program's verbs are added to, with the verbs man and version. Run runs one command
// line, prints its error and returns the exit code. SizeFlag, Required and ExactArgs are for the flags and arguments
// of verbs. IsTerminal and Console are for what a program writes to people.
//
// # Errors
//
// A verb returns Failed(err) for what it attempted in vain, Usage(err) if it attempted nothing, and ExitError for other
// codes. Every other error of a verb is one of its command line: Run adds how to get help.
package cli
