package admit

// A blockKind is how much memory a lease takes. Each kind has room of its own that the others
// cannot use up, so that Calls of one kind do not wait for those of another.
type blockKind uint8

const (
	smallBlock blockKind = iota // most Calls; the beginning of every record
	midBlock                    // as much of a record as a Conn leases before octets have come
	bulkBlock                   // as much as a record announces; the data of a WRITE
	blockKinds
)

const (
	// TinyBlock is the longest block of the loops' stocks. It is counted only while memory is
	// scarce: most Calls are as short, and counting costs a cache line that loops share.
	TinyBlock = 2 << 10

	mostSmall = 16<<10 + 512
	mostMid   = 64<<10 + 4<<10
)

func kindOf(size int64) blockKind {
	switch {
	case size <= mostSmall:
		return smallBlock
	case size <= mostMid:
		return midBlock
	}
	return bulkBlock
}
