// Package bench measures what carries RPC: an echo service over TCP and RDMA, a
// load of Calls whose every Reply is checked, and comparisons of several ways
// between the two.
//
// # Operation
//
// A Server answers the echo program, whose Calls say how long their Replies are
// to be, and NFSv3 NULL, GETATTR, READ and WRITE of a file that is one pattern.
// A Loader keeps Calls outstanding on many connections, or starts them at a
// rate, and measures inside a window after a warm-up. Compare runs several
// targets in turn, and its figures are ratios within a round: on a machine that
// does other things too, nothing else means anything.
//
// # Ownership
//
// Server and Loader run on the event loops of package tcpframe. Per Call neither
// allocates, generates data or copies them: data on either side are slices of
// one pattern, where they begin is the Call's tag. The tag is different for each
// Call of a run, so that a Reply with the data of another is noticed.
//
// # Sizes
//
// The size of a Call or Reply is that of the whole RPC message, headers
// included, without the record mark.
package bench
