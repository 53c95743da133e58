package rdmaside

// A chunkKind is the kind of a chunk, by which metrics count the octets that RDMA moves apart from the
// Sends. RFC 8166 Section 3.4.
type chunkKind uint8

const (
	chunkRead         chunkKind = iota // a Read chunk with an argument
	chunkPositionZero                  // the Position Zero Read chunk: a whole Call
	chunkWrite                         // a Write chunk: a result
	chunkReply                         // the Reply chunk: a whole Reply
	chunkKinds
)

var chunkKindNames = [chunkKinds]string{"read", "position_zero", "write", "reply"}
