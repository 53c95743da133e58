package doctor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

const (
	// proberBudget is the memory for messages of a Prober.
	proberBudget = 64 << 20
	// maxAddresses bounds the addresses of a name that are tried.
	maxAddresses = 8
	// maxPrograms bounds the NULL Calls to one endpoint.
	maxPrograms = 8
	// closeWait bounds how long the end of a connection may take.
	closeWait = 5 * time.Second
	// maxTCPReply is the longest Reply to a NULL Call over TCP.
	maxTCPReply = 64 << 10
)

// A Prober connects to endpoints with the parts that the bridge has: an event loop, an arena, the
// registry of bindings, and a provider for each Target. Its methods are safe for concurrent use.
type Prober struct {
	engine   *tcpframe.Engine
	arena    *regmem.Arena
	memory   *regmem.Account
	registry *ulb.Registry
	limits   ulb.Limits
}

// NewProber makes a Prober. Calls are planned with limits, as those of the bridge are.
func NewProber(limits ulb.Limits) (*Prober, error) {
	arena, err := regmem.New(regmem.Options{Budget: proberBudget})
	if err != nil {
		return nil, err
	}
	p := &Prober{arena: arena, memory: arena.Account("doctor", proberBudget), registry: ulb.NewRegistry(limits), limits: limits}
	nfs.Register(p.registry)
	// Nothing logs: what happens is in the findings.
	if p.engine, err = tcpframe.Start(tcpframe.EngineOptions{Loops: 1, Log: zerolog.Nop(), Metrics: metrics.New()}); err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	return p, nil
}

// Close ends everything.
func (p *Prober) Close() error {
	p.engine.Stop()
	return p.arena.Close()
}

// A conversation is a connection on which NULL Calls can be sent.
type conversation interface {
	// null sends a NULL Call and waits for the Reply.
	null(ctx context.Context, xid uint32, message []byte) (reply []byte, err error)
	// describe fills e after the last NULL Call.
	describe(e *Endpoint)
	// close ends the connection and waits for its end.
	close()
}

// Ask connects to t, sends NULL Calls and says what it found. It takes as long as connecting to
// each address of t and answering each Call may take, and ends early with ctx.
func (p *Prober) Ask(ctx context.Context, t *Target) (Endpoint, Findings) {
	var fs Findings
	e := newEndpoint(t)
	begun := time.Now()
	c, err := p.connect(ctx, t)
	if err != nil {
		if !errors.Is(err, fabric.ErrNoRDMA) || !t.judgeProtocol(ctx, err, &fs) {
			t.judgeDial(err, &fs)
		}
		return e, fs
	}
	defer c.close()
	e.Connected, e.Setup = true, milliseconds(time.Since(begun))
	c.describe(&e)
	for _, program := range t.Programs[:min(len(t.Programs), maxPrograms)] {
		answer, ok := t.ask(ctx, c, program, &fs)
		if !ok {
			return e, fs
		}
		e.Answers = append(e.Answers, answer)
	}
	c.describe(&e)
	t.judgePlain(&e, &fs)
	t.judgeConnection(&e, &fs)
	return e, fs
}

// connect connects to one address of t after the other.
func (p *Prober) connect(ctx context.Context, t *Target) (conversation, error) {
	host, port, err := net.SplitHostPort(t.Address)
	if err != nil {
		return nil, err
	}
	addresses := []netip.Addr{}
	if a, err := netip.ParseAddr(host); err == nil {
		addresses = append(addresses, a)
	} else {
		lookup, cancel := context.WithTimeout(ctx, t.Connect)
		addresses, err = net.DefaultResolver.LookupNetIP(lookup, "ip", host)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	var errs []error
	for _, a := range addresses[:min(len(addresses), maxAddresses)] {
		address := net.JoinHostPort(a.Unmap().String(), port)
		dialled, cancel := context.WithTimeout(ctx, t.Connect)
		var c conversation
		if t.RDMA {
			c, err = p.dialRDMA(dialled, t, address)
		} else {
			c, err = p.dialTCP(dialled, t, address)
		}
		cancel()
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// ask sends one NULL Call and judges the Reply.
func (t *Target) ask(ctx context.Context, c conversation, program Program, fs *Findings) (a ProgramAnswer, ok bool) {
	xid := rand.Uint32()
	begun := time.Now()
	answered, cancel := context.WithTimeout(ctx, t.Call)
	defer cancel()
	b, err := c.null(answered, xid, nullCall(xid, program))
	if err != nil {
		_, notSecured := errors.AsType[*tcpframe.TLSError](err)
		switch {
		case notSecured, t.TLS != nil && !isTimeout(err):
			// With TLS 1.3 the server sees this side's certificate when the handshake is over for this side.
			t.judgeTLS(&tlsError{err}, fs)
		case t.RDMA || !t.judgeProtocol(ctx, err, fs):
			t.judgeSilence(err, program, fs)
		}
		return a, false
	}
	var r oncrpc.Reply
	if err := oncrpc.ParseReply(b, &r); err != nil {
		fs.addf("endpoint-program", Error, t.subject(), "The Reply to a NULL Call of %s is malformed: %v.", program, err)
		return a, false
	}
	a = ProgramAnswer{Program: program, Answer: answerText(&r), Time: milliseconds(time.Since(begun))}
	t.judgeReply(&r, program, fs)
	return a, true
}

// nullCall makes a NULL Call: RFC 5531 Section 9. XID, CALL, RPC version, program, version,
// procedure 0, AUTH_NONE twice.
func nullCall(xid uint32, p Program) (b []byte) {
	for _, w := range []uint32{xid, oncrpc.TypeCall, 2, p.Number, p.Version, 0, 0, 0, 0, 0} {
		b = xdr.AppendUint32(b, w)
	}
	return b
}

// String names p as people do.
func (p Program) String() string {
	if p.Name == "" {
		return fmt.Sprintf("program %d version %d", p.Number, p.Version)
	}
	return fmt.Sprintf("%s version %d", p.Name, p.Version)
}

// answerText says what r is.
func answerText(r *oncrpc.Reply) string {
	switch {
	case r.Denied && r.RejectStat == oncrpc.AuthError:
		return "denied: " + oncrpc.AuthStatName(r.AuthStat)
	case r.Denied:
		return fmt.Sprintf("denied: RPC versions %d to %d", r.Low, r.High)
	}
	switch r.AcceptStat {
	case oncrpc.Success:
		return "success"
	case oncrpc.ProgramUnavailable:
		return "program unavailable"
	case oncrpc.ProgramMismatch:
		return fmt.Sprintf("version unavailable: has %d to %d", r.Low, r.High)
	case oncrpc.ProcedureUnavailable:
		return "procedure unavailable"
	case oncrpc.SystemError:
		return "system error"
	}
	return fmt.Sprintf("accept_stat %d", r.AcceptStat)
}
