package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
	"github.com/rdmabridge/rdmabridge/rdmaside/rpcrdma"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

func (t *Target) subject() string { return "upstream " + t.Upstream + ", " + t.Address }

// judgeDial reports why t could not be connected to.
func (t *Target) judgeDial(err error, fs *Findings) {
	host, port, _ := net.SplitHostPort(t.Address)
	var name *net.DNSError
	var dial *net.OpError
	var notSecured *tlsError
	switch {
	case errors.As(err, &notSecured):
		t.judgeTLS(notSecured, fs)
	case errors.Is(err, tcpframe.ErrPortForbidden):
		fs.Add("privileged-port", Error, t.subject(),
			fmt.Sprintf("This process may not connect from ports %d to %d, which need CAP_NET_BIND_SERVICE: %v.", t.Low, t.High, err),
			"setcap cap_net_bind_service=ep /usr/local/bin/rdmabridge", "systemctl edit rdmabridge   # and write: [Service] AmbientCapabilities=CAP_NET_BIND_SERVICE")
	case errors.Is(err, tcpframe.ErrPortTaken):
		fs.Add("endpoint-source", Warning, t.subject(),
			fmt.Sprintf("Every source port that was tried, of %d to %d, is in use, by a bridge that runs perhaps: %v.", t.Low, t.High, err), "ss -tnp dst "+host)
	case t.Source.IsValid() && errors.Is(err, syscall.EADDRNOTAVAIL):
		fs.Add("endpoint-source", Error, t.subject(), fmt.Sprintf("This host does not have the source address %s.", t.Source), "ip addr show", "ip addr add "+t.Source.String()+"/PREFIX dev DEV")
	case errors.As(err, &name):
		fs.Add("endpoint-unreachable", Error, t.subject(), fmt.Sprintf("The name %s has no address: %v.", host, err), "getent hosts "+shellWord(host))
	case errors.Is(err, syscall.ECONNREFUSED):
		text := fmt.Sprintf("The host answers, and nothing listens at port %s.", port)
		if t.Name == "iwarp" && t.RDMA {
			text += " The provider iwarp reaches servers with iWARP adapters and siw; those on RoCE and InfiniBand do not listen for it."
		}
		fs.Add("endpoint-refused", Error, t.subject(), text, t.listenFix(port)...)
	case errors.Is(err, fabric.ErrRejected):
		fs.Add("endpoint-refused", Error, t.subject(),
			fmt.Sprintf("The server rejects the connection: %v. It may be short of resources, or serve something else at this port.", err), "dmesg | tail   # on the server")
	case errors.Is(err, fabric.ErrNoRDMA):
		fs.Add("endpoint-protocol", Error, t.subject(),
			fmt.Sprintf("Something accepts connections at port %s, and it is no RDMA: %v. NFS/RDMA is usually at port 20049, and servers on RoCE and InfiniBand do not answer to iWARP.", port, err), t.listenFix(port)...)
	case isTimeout(err):
		fs.Add("endpoint-unreachable", Error, t.subject(),
			fmt.Sprintf("The endpoint did not answer within %v: %v. A firewall may drop the packets, or the host is down.", t.Connect, err),
			"ping -c 3 "+shellWord(host), "nc -vz "+shellWord(host)+" "+port)
	case errors.As(err, &dial) && dial.Op == "dial":
		fs.Add("endpoint-unreachable", Error, t.subject(), fmt.Sprintf("The endpoint cannot be reached: %v.", err), "ip route get "+shellWord(host))
	case errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		fs.Add("endpoint-unreachable", Error, t.subject(), fmt.Sprintf("No RDMA device leads to the endpoint: %v.", err), "rdma link show", "ip route get "+shellWord(host))
	default:
		fs.Add("endpoint-refused", Error, t.subject(),
			fmt.Sprintf("The connection does not come about: %v. Perhaps nothing listens at this port, or the server speaks another protocol there.", err), t.listenFix(port)...)
	}
}

// listenFix is what to type on a server that does not listen.
func (t *Target) listenFix(port string) []string {
	if t.RDMA {
		return []string{
			"cat /proc/fs/nfsd/portlist   # on a Linux server",
			"echo 'rdma " + port + "' > /proc/fs/nfsd/portlist   # on a Linux server, with the module rpcrdma",
		}
	}
	return []string{"ss -tlnp 'sport = :" + port + "'   # on the server", "systemctl status nfs-server   # on a Linux server"}
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT)
}

// judgeSilence reports a NULL Call without a Reply.
func (t *Target) judgeSilence(err error, program Program, fs *Findings) {
	text := fmt.Sprintf("The server accepts the connection and ends it instead of answering a NULL Call of %s: %v.", program, err)
	if isTimeout(err) {
		text = fmt.Sprintf("The server accepts the connection and does not answer a NULL Call of %s within %v.", program, t.Call)
	}
	fs.Add("endpoint-silent", Error, t.subject(), text, "cat /proc/fs/nfsd/threads   # on a Linux server: are there any?", "dmesg | tail   # on the server")
}

// judgeReply reports a Reply that says that the server does not serve a program. The program in
// another version is good to know: clients choose the version.
func (t *Target) judgeReply(r *oncrpc.Reply, program Program, fs *Findings) {
	switch {
	case r.Succeeded():
	case !r.Denied && r.AcceptStat == oncrpc.ProgramMismatch:
		fs.addf("endpoint-program", Note, t.subject(), "The server does not serve %s. It has versions %d to %d.", program, r.Low, r.High)
	case !r.Denied && r.AcceptStat == oncrpc.ProgramUnavailable:
		host, _, _ := net.SplitHostPort(t.Address)
		fs.Add("endpoint-program", Warning, t.subject(),
			fmt.Sprintf("The server does not serve %s at this port, and the configuration sends it there.", program), "rpcinfo -p "+shellWord(host))
	case r.RefusedWith(oncrpc.AuthTooWeak) && t.TLS == nil:
		fs.Add("endpoint-tls", Error, t.subject(),
			fmt.Sprintf("The server refuses a NULL Call of %s with AUTH_TOOWEAK: it requires TLS, and the upstream has none; or it is a bridge with a rule that denies Calls without Kerberos.", program),
			"tls: {mode: required, ca: FILE}   # of the upstream; docs/tls.md")
	default:
		fs.addf("endpoint-program", Warning, t.subject(), "The server answers a NULL Call of %s with: %s.", program, answerText(r))
	}
}

// judgeConnection reports what an RDMA connection has less of than the configuration asks for.
func (t *Target) judgeConnection(e *Endpoint, fs *Findings) {
	if !t.RDMA {
		return
	}
	if e.PrivateData == nil {
		fs.addf("endpoint-no-private-data", Note, t.subject(),
			"The server sends no private data of RFC 8797, so that messages of more than %d octets need chunks.", rpcrdma.DefaultInline)
	} else if e.CallInline < t.CallInline || e.ReplyInline < t.ReplyInline {
		fs.addf("endpoint-inline", Note, t.subject(),
			"The inline thresholds are %d octets for Calls and %d for Replies, because the server has no larger ones. The configuration allows %d and %d.",
			e.CallInline, e.ReplyInline, t.CallInline, t.ReplyInline)
	}
	if e.Credits > 0 && e.Credits < t.Credits {
		fs.Add("endpoint-credits", Note, t.subject(),
			fmt.Sprintf("The server grants %d credits for each connection, and pool.credits is %d. More connections (pool.connections) carry more Calls at a time.", e.Credits, t.Credits),
			"cat /proc/sys/sunrpc/svc_rdma/max_requests   # on a Linux server")
	}
}
