package ulb

// Octets of a Transport header, RFC 8166 Section 4: the fixed part with three empty
// lists, and the octets that one chunk of one segment adds to each list.
const (
	headerLen    = 28
	readListLen  = 24 // 1 - PHLOO
	writeListLen = 24 // 1 - 1 - HLOO
	segmentLen   = 16 // HLOO
)

// Reply chunks have some slack and are then rounded up to pages, so that a Reply with an
// attribute that its binding does not expect still fits.
const (
	replySlack   = 256
	replyQuantum = 4 << 10
)

const (
	// MaxSegments is the most segments of a Reply chunk.
	MaxSegments = 4
	// mostSegment is the most octets of a Reply chunk's segment, unless the chunk then had more
	// than MaxSegments. Older servers with ntirpc end at a longer segment; none of them returns
	// more than 1 MiB of data.
	mostSegment = 1 << 20
)

// Segments returns how many segments the chunk of s is offered in, and the octets of each but the
// last. A Write chunk has one segment: it holds data alone and is no longer than a READ's.
func (s Shape) Segments() (count int, each uint32) {
	if s.Reply != ReplyChunk {
		return 1, s.Capacity
	}
	const quantum = MaxSegments * replyQuantum
	each = max(mostSegment, (s.Capacity+quantum-1)/quantum*replyQuantum)
	return int((s.Capacity + each - 1) / each), each
}

// replyChunkLen returns the octets that the Reply chunk of s adds to a header: the count and the
// segments. The 1 before them replaces a 0.
func (s Shape) replyChunkLen() int {
	count, _ := s.Segments()
	return 4 + count*segmentLen
}

// maxCall keeps sums of lengths within an int on every platform. Records of the TCP side
// are far shorter.
const maxCall = 1 << 30

// Plan chooses how a Call of callLen octets travels and which chunk it offers for its
// Reply, given the inline thresholds of both directions in octets. It fails
// only with ErrTooLong.
//
// A Long Call with a Reply chunk can carry everything. Apart from that shape, Plan chooses only
// shapes that the Linux client sends, because servers are tested with them: one chunk per list,
// never a Write list with a Reply chunk, and a Write list only with a Call that is inline.
func (reg *Registry) Plan(a *Analysis, callLen, callInline, replyInline int) (Shape, error) {
	if callLen < 0 || callLen > maxCall || callInline < headerLen+readListLen+4+MaxSegments*segmentLen {
		return Shape{}, ErrTooLong
	}
	var s Shape
	chunks := 0 // octets that the Reply chunk adds to the Call's header
	switch {
	case headerLen+int64(a.MaxReply) <= int64(replyInline):
		s.Reply = ReplyInline
	case a.Reduce && a.Known && a.ResultMax > 0 &&
		headerLen+writeListLen+int64(a.MaxReduced) <= int64(replyInline) &&
		headerLen+writeListLen+callLen <= callInline:
		// "the Requester SHOULD NOT include additional space for XDR roundup padding", RFC 8166
		// Section 3.4.6.2. Plan includes it, as the Linux client does. Without this space, a
		// Responder that writes roundup would break the connection.
		s.Reply = ReplyWriteChunk
		s.Capacity = roundup(a.ResultMax)
		return s, nil // the Call is inline
	default:
		s.Reply = ReplyChunk
		s.Capacity = reg.replyCapacity(a.MaxReply)
		chunks = s.replyChunkLen()
	}
	switch {
	case headerLen+chunks+callLen <= callInline:
		s.Call = CallInline
	case a.Reduce && a.Known && a.ArgLength > 0 &&
		headerLen+chunks+readListLen+callLen-int(roundup(a.ArgLength)) <= callInline:
		s.Call = CallReadChunk
	default:
		s.Call = CallLong
	}
	return s, nil
}

// replyCapacity returns the size of the Reply chunk for a Reply of at most n octets. It adds no
// slack beyond Limits.MaxReply, which already includes slack.
func (reg *Registry) replyCapacity(n uint32) uint32 {
	up := func(n uint32) uint32 { return (n + replyQuantum - 1) &^ (replyQuantum - 1) }
	return min(up(n+replySlack), up(reg.limits.MaxReply))
}

// roundup does what xdr.Roundup does, for a length that a Cursor or Limits have bounded.
func roundup(n uint32) uint32 { return (n + 3) &^ 3 }
