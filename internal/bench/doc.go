// Package bench measures proxies for RPC. It has an echo service over TCP and RDMA, a
// load generator that checks every Reply, and comparisons of several targets under the
// same load.
//
// # Operation
//
// A Server answers the echo program, whose Calls give the length of their Replies, and NFSv3
// NULL, GETATTR, READ and WRITE of a file that contains one pattern. A Loader keeps Calls
// outstanding on many connections, or starts them at a rate, and measures inside a window after
// a warm-up. Compare runs several targets in turn and computes ratios within a round. On a
// machine that also runs other programs, absolute figures of different rounds cannot be
// compared.
//
// # Ownership
//
// Server and Loader run on the event loops of package tcpframe. For a Call they neither
// allocate nor generate nor copy data: data of both are slices of one pattern. The
// Call's tag gives the offset in the pattern. Each Call of a run has a different tag, so
// that a Reply with the data of another Call is detected.
//
// # Sizes
//
// The size of a Call or Reply is the length of the whole RPC message, headers included, without
// the record mark.
package bench
