package faults

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// A transport is a set of transports.
type transport uint8

const (
	overTCP transport = 1 << iota
	overRDMA
	overBoth = overTCP | overRDMA
)

func (t transport) String() string {
	return map[transport]string{overTCP: "tcp", overRDMA: "rdma", overBoth: "both"}[t]
}

// A stage is where a fault is injected.
type stage uint8

const (
	atConnect stage = iota // instead of accepting a connection
	atCall                 // instead of giving the Call to the server
	atReply                // to the Reply of the server
)

// A Kind is a fault that a rule can name.
type Kind struct {
	Name      string
	Transport transport
	Does      string // what this server does
	Says      string // what the RFC says about it, or what a client should do
	Takes     []string

	stage stage
	// chunks is what the Call must have offered: "write", "reply", "any", or "" for nothing.
	chunks string
	wire   bool // needs a provider whose connections are TCP sockets
}

// Names of faults that the code treats specially.
const (
	delay           = "delay"
	dropCall        = "drop_call"
	dropReply       = "drop_reply"
	duplicateReply  = "duplicate_reply"
	wrongXID        = "wrong_xid"
	reorder         = "reorder"
	rpcError        = "rpc_error"
	shortReply      = "short_reply"
	corrupt         = "corrupt"
	closeConn       = "close"
	resetConn       = "reset"
	cut             = "cut"
	halfClose       = "half_close"
	freeze          = "freeze"
	refuse          = "refuse"
	hangConnect     = "hang_connect"
	grant           = "grant"
	errChunk        = "err_chunk"
	errVers         = "err_vers"
	badVersion      = "bad_version"
	badProcedure    = "bad_procedure"
	shortHeader     = "short_header"
	chunkShort      = "chunk_short"
	chunkLong       = "chunk_long"
	chunkBeyond     = "chunk_beyond"
	chunkUnwritten  = "chunk_unwritten"
	chunkMissing    = "chunk_missing"
	chunkOverrun    = "chunk_overrun"
	lateWrite       = "late_write"
	wrongInvalidate = "wrong_invalidate"
	fragments       = "fragments"
	longRecord      = "long_record"
	shortRecord     = "short_record"
)

// Kinds are all faults.
var Kinds = []Kind{
	{
		Name: delay, Transport: overBoth, stage: atReply, Takes: []string{"delay", "jitter"},
		Does: "holds the Reply for `delay`, and up to `jitter` more; other Replies overtake it",
		Says: "Replies may come in any order (RFC 5531 Section 9); the client waits for its timeout",
	},
	{
		Name: reorder, Transport: overBoth, stage: atReply, Takes: []string{"replies", "delay"},
		Does: "holds the Reply until `replies` others (1) have gone to the client, but no longer than `delay` (100ms)",
		Says: "Replies may come in any order (RFC 5531 Section 9); the XID says which Call they answer",
	},
	{
		Name: dropCall, Transport: overBoth, stage: atCall,
		Does: "never gives the Call to the server and never answers it",
		Says: "the client sends the Call again, for NFSv4 on a new connection only (RFC 8881 Section 2.9.2)",
	},
	{
		Name: dropReply, Transport: overBoth, stage: atReply,
		Does: "lets the server execute the Call and drops the Reply",
		Says: "as drop_call; the server's duplicate request cache, or the session, keeps the second Call from doing harm",
	},
	{
		Name: duplicateReply, Transport: overBoth, stage: atReply,
		Does: "sends the Reply twice",
		Says: "the client drops the second one, whose XID it does not know; on RDMA it needs a Receive for it (RFC 8166 Section 3.3.1)",
	},
	{
		Name: wrongXID, Transport: overBoth, stage: atReply, Takes: []string{"where"},
		Does: "changes the XID of the Reply: with `where: both` (the default) in the Transport header and in the RPC message, with `header` or `payload` on RDMA only there",
		Says: "the client drops a Reply to no Call; both XIDs must be the same (RFC 8166 Section 4.2.1)",
	},
	{
		Name: rpcError, Transport: overBoth, stage: atCall, Takes: []string{"error"},
		Does: "answers without the server: SYSTEM_ERR (the default), GARBAGE_ARGS, PROC_UNAVAIL, PROG_UNAVAIL, AUTH_BADCRED, AUTH_REJECTEDCRED, or AUTH_TOOWEAK",
		Says: "the Call fails and is not sent again (RFC 5531 Section 9)",
	},
	{
		Name: shortReply, Transport: overBoth, stage: atReply, Takes: []string{"octets"},
		Does: "leaves out the last `octets` (4) of the RPC message, on RDMA of the part that is inline",
		Says: "the Call fails: its results cannot be decoded",
	},
	{
		Name: corrupt, Transport: overBoth, stage: atReply, wire: true,
		Does: "changes one bit of the Reply on the wire, behind its first 64 octets if it has more",
		Says: "iWARP: the CRC fails, and the client's side ends the connection with a Terminate (RFC 5044 Section 8, RFC 5040 Section 4.8); TCP: nothing but krb5i and krb5p can tell",
	},
	{
		Name: closeConn, Transport: overBoth, stage: atReply,
		Does: "lets the server execute the Call and closes the connection (FIN) in place of the Reply",
		Says: "the client connects again and sends all unanswered Calls again (RFC 8166 Section 4.5.4)",
	},
	{
		Name: resetConn, Transport: overBoth, stage: atReply, wire: true,
		Does: "lets the server execute the Call and resets the connection (RST) in place of the Reply",
		Says: "as close",
	},
	{
		Name: cut, Transport: overBoth, stage: atReply, wire: true, Takes: []string{"octets", "how"},
		Does: "writes `octets` of the Reply to the wire (20), and ends the connection inside it: `how: reset` (the default) or `close`",
		Says: "as close; the client uses nothing of a part: on iWARP the FPDU has no CRC yet",
	},
	{
		Name: halfClose, Transport: overBoth, stage: atReply, wire: true,
		Does: "sends the Reply and then FIN, and goes on to read Calls that it never answers",
		Says: "the client closes its side, too, and connects again",
	},
	{
		Name: freeze, Transport: overBoth, stage: atReply, wire: true, Takes: []string{"delay"},
		Does: "neither reads nor writes on the connection for `delay`; the kernel still acknowledges",
		Says: "nothing happens to the connection; Calls wait",
	},
	{
		Name: refuse, Transport: overBoth, stage: atConnect, Takes: []string{"how"},
		Does: "refuses a connection: `how: reject` (the default on RDMA: the MPA Reply has the bit R, or the CM rejects), or closes it at once (TCP: RST)",
		Says: "the client tries again, with pauses that grow",
	},
	{
		Name: hangConnect, Transport: overBoth, stage: atConnect, Takes: []string{"delay"},
		Does: "lets a connection wait for `delay` (60s) before it is set up: on RDMA without the MPA Reply, on TCP without reading",
		Says: "the client gives up after a timeout of its own, and tries again",
	},
	{
		Name: grant, Transport: overRDMA, stage: atReply, Takes: []string{"credits"},
		Does: "grants `credits` in the Reply: 0 (the default), 1, or 4294967295",
		Says: "\"The granted value MUST NOT be zero\"; a client takes 0 for 1, obeys a lower grant as its Calls are answered, and never has more Calls outstanding than it asked for (RFC 8166 Section 3.3.1)",
	},
	{
		Name: errChunk, Transport: overRDMA, stage: atCall,
		Does: "answers with RDMA_ERROR, ERR_CHUNK, without the server",
		Says: "the Call fails; the client must not send it again as it was (RFC 8166 Sections 4.5.2 and 4.5.3)",
	},
	{
		Name: errVers, Transport: overRDMA, stage: atCall, Takes: []string{"low", "high"},
		Does: "answers with RDMA_ERROR, ERR_VERS, and names the versions `low` (2) to `high` (2), without the server",
		Says: "the client speaks a version of that range, or fails the Call (RFC 8166 Section 4.5.1)",
	},
	{
		Name: badVersion, Transport: overRDMA, stage: atReply, Takes: []string{"value"},
		Does: "puts `value` (2) into rdma_vers of the Reply",
		Says: "\"a Requester MUST silently discard the message\" (RFC 8166 Section 4.5)",
	},
	{
		Name: badProcedure, Transport: overRDMA, stage: atReply, Takes: []string{"value"},
		Does: "puts `value` (9) into rdma_proc of the Reply",
		Says: "as bad_version",
	},
	{
		Name: shortHeader, Transport: overRDMA, stage: atReply, Takes: []string{"octets"},
		Does: "sends only the first `octets` (20) of the Reply's Transport header",
		Says: "as bad_version",
	},
	{
		Name: chunkShort, Transport: overRDMA, stage: atReply, chunks: "any", Takes: []string{"octets"},
		Does: "says in the Reply that `octets` (4) less were written into the chunk than were: a length that RFC 8166 allows, but not the one that the RPC message needs",
		Says: "the Call fails: the data are shorter than the RPC message says (RFC 8166 Section 3.4.6)",
	},
	{
		Name: chunkLong, Transport: overRDMA, stage: atReply, chunks: "any", Takes: []string{"octets"},
		Does: "says that `octets` (4) more were written than were, but no more than the chunk has; a full chunk is left alone",
		Says: "as chunk_short; octets that were not written must not reach the application",
	},
	{
		Name: chunkBeyond, Transport: overRDMA, stage: atReply, chunks: "any", Takes: []string{"octets"},
		Does: "says that `octets` (4) more were written than the client's segment has room for",
		Says: "the length of a segment may only become smaller (RFC 8166 Section 3.4.6): the Call fails, and no memory behind the segment is read",
	},
	{
		Name: chunkUnwritten, Transport: overRDMA, stage: atReply, chunks: "any",
		Does: "sends the Reply with its right lengths, but writes nothing into the chunks",
		Says: "a client that does not clear the memory, or does not know what was written, takes what was there for data",
	},
	{
		Name: chunkMissing, Transport: overRDMA, stage: atReply, chunks: "write",
		Does: "sends the Reply without the Write list, though its data are in the client's Write chunk",
		Says: "the Reply must return the list (RFC 8166 Section 4.3.2); the Call fails",
	},
	{
		Name: chunkOverrun, Transport: overRDMA, stage: atReply, chunks: "any",
		Does: "writes four octets right behind the client's segment, before the Reply",
		Says: "the client's adapter ends the connection: a base or bounds violation (RFC 5041 Section 7.2); nothing is overwritten",
	},
	{
		Name: lateWrite, Transport: overRDMA, stage: atReply, chunks: "any", Takes: []string{"delay"},
		Does: "writes four octets into the chunk again, `delay` (50ms) after the Reply",
		Says: "the client has invalidated the handle (RFC 8166 Section 4.4.1): its adapter ends the connection, and nothing is overwritten",
	},
	{
		Name: wrongInvalidate, Transport: overRDMA, stage: atReply, chunks: "any",
		Does: "sends the Reply with Send With Invalidate and a handle that the client never offered",
		Says: "only a handle of this XID may be invalidated (RFC 8797 Section 4.1): the client ends the connection",
	},
	{
		Name: fragments, Transport: overTCP, stage: atReply, Takes: []string{"octets"},
		Does: "sends the Reply in record fragments of `octets` (100), which is legal",
		Says: "the client puts them together (RFC 5531 Section 11)",
	},
	{
		Name: longRecord, Transport: overTCP, stage: atReply, Takes: []string{"octets"},
		Does: "says in the record mark that the Reply is `octets` (4) longer than it is",
		Says: "the client has lost the framing; it must end the connection and connect again",
	},
	{
		Name: shortRecord, Transport: overTCP, stage: atReply, Takes: []string{"octets"},
		Does: "says in the record mark that the Reply is `octets` (4) shorter than it is",
		Says: "as long_record",
	},
}

// kindByName returns the fault with this name, or nil.
func kindByName(name string) *Kind {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return &Kinds[i]
}

// List writes a table of all faults.
func List(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FAULT\tTRANSPORT\tSETTINGS\tWHAT THE SERVER DOES")
	for _, k := range Kinds {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", k.Name, k.Transport, strings.Join(k.Takes, ", "), k.Does)
	}
	return t.Flush()
}

// Markdown writes the same table, and what the RFCs say, as docs/fault-server.md has it.
func Markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| Fault | Transport | Settings | What the server does | What a client should do |\n|---|---|---|---|---|\n")
	for _, k := range Kinds {
		takes := "-"
		if len(k.Takes) > 0 {
			takes = "`" + strings.Join(k.Takes, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.Name, k.Transport, takes, k.Does, k.Says)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
