package eventloop

// A share bounds the octets that one socket moves in one pass of its loop, which is the
// time that the other sockets of the loop wait. Reading 256 KiB takes about 50 us and
// writing 512 KiB some 200 us, and more if the octets have to be produced first.
type share struct {
	get int // by Socket.Read, in addition to the octets that came with Received
	put int // by Socket.Writev
}

var (
	// few is the share on a loop with few busy sockets. Without it, a peer that reads as
	// fast as this side writes would take megabytes in one pass.
	few = share{get: 256 << 10, put: 512 << 10}
	// many is the share on a loop with more than crowded busy sockets. The smaller pieces
	// cost one connection with megabytes under way up to a fifth of its throughput. They
	// halved the p99 of 31 clients with small Calls beside such a connection.
	many = share{get: 64 << 10, put: 128 << 10}
)

// crowded is the most busy sockets for which the share is few.
const crowded = 8

// shareSlack is how many octets one Read may exceed share.get by, so that it does not
// leave a small rest for another pass.
const shareSlack = 16 << 10
