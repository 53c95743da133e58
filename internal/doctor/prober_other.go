package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/protocol"
)

const (
	// speakWait bounds each question of speaks. A server on a LAN answers within a few milliseconds.
	speakWait = 2 * time.Second
	// speakMost is how much of an answer speaks reads.
	speakMost = 64
)

// speaks asks what listens at address, which does not speak what t wants. It returns one of package protocol, or "".
func (t *Target) speaks(ctx context.Context, address string) string {
	program := Program{}
	if len(t.Programs) > 0 {
		program = t.Programs[0]
	}
	call := nullCall(1, program)
	mark := binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(call)))
	questions := [][]byte{append(mark, call...)}
	if !t.RDMA {
		// A Request of revision 1 without private data: RFC 5044 Section 7.1.1.
		questions[0] = append([]byte("MPA ID Req Frame"), 0x40, 1, 0, 0)
	}
	for _, q := range append(questions, []byte("GET / HTTP/1.0\r\n\r\n")) {
		if p := protocol.Of(answerTo(ctx, address, q)); p != "" {
			return p
		}
	}
	return ""
}

// answerTo returns the beginning of what the server at address answers to question.
func answerTo(ctx context.Context, address string, question []byte) []byte {
	ctx, cancel := context.WithTimeout(ctx, speakWait)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	_ = c.SetDeadline(end)
	if _, err := c.Write(question); err != nil {
		return nil
	}
	var b [speakMost]byte
	n := 0
	for n < 12 { // a record mark, the XID and the type of an RPC message
		k, err := c.Read(b[n:])
		if n += k; err != nil {
			break
		}
	}
	return b[:n]
}

// judgeProtocol asks what listens at the address of t, and reports it. It reports false if it does not find out.
func (t *Target) judgeProtocol(ctx context.Context, why error, fs *Findings) (found bool) {
	host, port, _ := net.SplitHostPort(t.Address)
	p := t.speaks(ctx, t.Address)
	transport := "tcp"
	if t.RDMA {
		transport = "rdma"
	}
	text := fmt.Sprintf("Port %s of %s answers as %s, and the upstream has transport: %s. The connection failed: %v.", port, host, p, transport, why)
	var fix []string
	switch {
	case p == "" || p == protocol.RPC && !t.RDMA:
		return false
	case p == protocol.RPC:
		text = strings.Replace(text, protocol.RPC, "NFS over TCP", 1) + " NFS/RDMA is usually at port 20049."
		fix = []string{"endpoints: [\"" + net.JoinHostPort(host, "20049") + "\"]   # of the upstream, or transport: tcp", "cat /proc/fs/nfsd/portlist   # on a Linux server"}
	case p == protocol.MPA:
		text += " NFS over TCP is usually at port 2049."
		fix = []string{"endpoints: [\"" + net.JoinHostPort(host, "2049") + "\"]   # of the upstream, or transport: rdma"}
	default:
		fix = []string{"ss -tlnp 'sport = :" + port + "'   # on the server: what is it?"}
	}
	fs.Add("endpoint-protocol", Error, t.subject(), text, fix...)
	return true
}
