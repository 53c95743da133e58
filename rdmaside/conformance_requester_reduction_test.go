package rdmaside

import (
	"bytes"
	"encoding/binary"

	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
)

// requesterReductionRules are the rules of Section 3.4: which data items are reduced,
// and what chunks hold.
var requesterReductionRules = []requesterRule{
	{section: "3.4.2", says: "all other XDR data items MUST NOT be reduced: an unknown program, a long name, a WRITE under GSS integrity and privacy go whole", run: ineligibleCallsWhole},
	{section: "3.4.4.1", says: "the count of array elements MUST remain in the Payload stream, the elements MUST be moved to the chunk", run: elementsMoved},
	{section: "3.4.4.2", says: "the \"is present\" field of optional-data MUST remain in the Payload stream, and what it says is present: no binding has an eligible one; LAYOUTCOMMIT, which has two, before a WRITE", run: optionalDataStays},
	{section: "3.4.4.3", says: "a union MUST NOT be DDP-eligible, but arms may be: the link text of CREATE, an arm, may be and is not reduced", run: unionNotReduced},
	{section: "3.4.4.4", says: "a chunk MUST contain exactly one XDR data item; roundup MUST be removed from the Payload stream: WRITE 100, WRITE 8001, GETATTR", run: oneItemReduced},
	{section: "3.4.5", says: "Position MUST be computed from the beginning of the unreduced Payload stream", run: positionUnreduced},
	{section: "3.4.5.2", says: "SHOULD NOT include roundup padding in the chunk; its total length MUST be that of the item", same: TestRequesterWriteByReadChunk},
	{section: "3.4.6", says: "MUST register Write chunks long enough to accommodate the maximum possible size of each returned data item", run: writeChunkLength},
	{
		section: "3.4.6.2", says: "SHOULD NOT include additional space for XDR roundup padding",
		departs: "up to three octets are: they keep a Responder that writes roundup from ending the connection, and Linux clients send them too",
		run:     roundupSpace,
	},
}

func ineligibleCallsWhole(tc *requesterCase) {
	tc.open(8)
	for _, m := range [][]byte{
		opaqueCall(1, 9000), nfsCall(1, 3, handle32, opaque(pattern(5000, 1))),
		gssCall(1, 2, data8001), gssCall(1, 3, data8001),
	} {
		tc.send(m)
		s := tc.peer.wantSend("a Long Call")
		if s.Proc != rpcrdma.NoMsg || s.ReadLength(0) != uint64(len(m)) || len(s.Reads) != 1 || len(s.Writes) != 0 {
			tc.t.Fatalf("%+v", &s.Header)
		}
		if !bytes.Equal(tc.peer.read(s.Reads[0].Segment), m) {
			tc.t.Error("the Position Zero Read chunk is not the call")
		}
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
			if s.Reply != nil {
				h.SetReply(shortened(s.Reply.Segments[0], 0))
			}
		}), accepted(1))
		tc.wantReply("its reply", accepted(1))
	}
}

func elementsMoved(tc *requesterCase) {
	m := writeCall(1, data8001)
	tc.send(m)
	s := tc.peer.wantSend("WRITE")
	at := len(m) - len(data8001) - 3
	if len(s.Reads) != 1 || !bytes.Equal(s.payload, m[:at]) || binary.BigEndian.Uint32(s.payload[at-4:]) != uint32(len(data8001)) {
		tc.t.Fatalf("%+v, payload %x", &s.Header, s.payload)
	}
	if !bytes.Equal(tc.peer.read(s.Reads[0].Segment), data8001) {
		tc.t.Error("the chunk is not the elements")
	}
}

func optionalDataStays(tc *requesterCase) {
	for _, optional := range [][]byte{words(1, 0, 5, 1, 0, 6, 7), words(0, 0)} {
		commit := bytes.Join([][]byte{words(49, 0, 0, 0, 100, 0, 0, 0, 0, 0), optional, words(1), opaque(nil)}, nil)
		m := compoundCall(1, commit, writeOp(data8001))
		copy(m[44:], words(1)) // minor version 1
		tc.send(m)
		s := tc.peer.wantSend("LAYOUTCOMMIT, WRITE")
		at := len(m) - len(data8001) - 3
		if len(s.Reads) != 1 || int(s.Reads[0].Position) != at || !bytes.Equal(s.payload, m[:at]) {
			tc.t.Errorf("%+v, payload %x", &s.Header, s.payload)
		}
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) {
			if s.Reply != nil {
				h.SetReply(shortened(s.Reply.Segments[0], 0))
			}
		}), accepted(1))
		tc.wantReply("its reply", accepted(1))
	}
}

func unionNotReduced(tc *requesterCase) {
	m := compoundCall(1, bytes.Join([][]byte{words(6, 5), opaque(pattern(5000, 1)), opaque([]byte("link")), words(0, 0)}, nil))
	tc.send(m)
	if s := tc.peer.wantSend("CREATE"); s.Proc != rpcrdma.NoMsg || s.ReadLength(0) != uint64(len(m)) {
		tc.t.Errorf("%+v", &s.Header)
	}
}

func oneItemReduced(tc *requesterCase) {
	tail := words(9, 1, 0x10)
	m := compoundCall(1, writeOp(pattern(100, 1)), writeOp(data8001), tail)
	tc.send(m)
	s := tc.peer.wantSend("two WRITEs")
	at := len(m) - len(tail) - 8004
	if len(s.Reads) != 1 || int(s.Reads[0].Position) != at || !bytes.Equal(s.payload, cut(m, at, len(data8001))) {
		tc.t.Fatalf("%+v, payload %x", &s.Header, s.payload)
	}
	if !bytes.Equal(tc.peer.read(s.Reads[0].Segment), data8001) {
		tc.t.Error("the chunk is not the longer item")
	}
}

func positionUnreduced(tc *requesterCase) {
	tc.open(8)
	for n := range 4 {
		for _, name := range []int{1, 30, 128} {
			m := compoundCall(1, append(words(22), opaque(pattern(name, 1))...), writeOp(pattern(8000+n, 2)))
			tc.send(m)
			s := tc.peer.wantSend("PUTFH, WRITE")
			if len(s.Reads) != 1 || !bytes.Equal(m[s.Reads[0].Position:][:8000+n], tc.peer.read(s.Reads[0].Segment)) {
				tc.t.Errorf("%+v", &s.Header)
			}
			tc.peer.send(0, plain(1, 8), accepted(1))
			tc.wantReply("its reply", accepted(1))
		}
	}
}

func writeChunkLength(tc *requesterCase) {
	tc.open(8)
	for _, count := range []int{3969, 4096, 8191, 8192, 65537, 1 << 20} {
		tc.send(readCall(1, count))
		s := tc.peer.wantSend("READ")
		if len(s.Writes) != 1 || s.Writes[0].Length() < uint64(count) {
			tc.t.Fatalf("READ of %d: %+v", count, &s.Header)
		}
		seg := s.Writes[0].Segments[0]
		want, at := readReply(1, pattern(count, 1))
		tc.peer.write(shortened(seg, count), pattern(count, 1))
		tc.peer.send(0, header(1, 8, rpcrdma.Msg, func(h *rpcrdma.Header) { h.AddWrite(shortened(seg, count)) }), cut(want, at, count))
		tc.wantReply("all of it", want)
	}
}

func roundupSpace(tc *requesterCase) {
	tc.send(readCall(1, 8191))
	if n := tc.peer.wantSend("READ").Writes[0].Length(); n != 8192 {
		tc.t.Errorf("Write chunk of %d octets for 8191", n)
	}
}
