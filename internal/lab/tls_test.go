//go:build lab

package lab

import (
	"crypto/tls"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/internal/testkit/tlstest"
)

// TestLabTLS is about RPC-with-TLS (RFC 9289), with a newer kernel than the other tests and with tlshd, which makes
// the handshakes for the kernel's client and server.
//
//	the guest's NFS client -- TLS --> rdmabridge on this host -- iWARP --> the guest's knfsd
//	the guest's NFS client -- TCP --> rdmabridge on this host -- TLS ----> the guest's knfsd
//
// Linux lets no mount hang whose client is refused, with or without a certificate: mount.nfs says that the server
// denies access.
func TestLabTLS(t *testing.T) {
	needLab(t)
	l := &tlsLab{g: newGuest(t, packTLSGuest(t), "--tls", "1", "--mem", "5120", "--append", "lab.rdma=siw lab.server=1")}
	l.g.boot(t)
	l.certify(t)
	l.g.job(t, time.Minute, "/lab/tls.sh start /host/pki")
	t.Run("direct", l.testDirect)
	l.bridge(t)
	t.Run("files", l.testFiles)
	t.Run("plain", l.testPlain)
	t.Run("refused", l.testRefused)
	t.Run("revoked", l.testRevoked)
	t.Run("rotated", l.testRotated)
	t.Run("chain", l.testChain)
	t.Run("upstream", l.testUpstream)
	t.Run("stop", func(t *testing.T) { l.b.stop(t) })
}

// packTLSGuest is packGuest for guests with TLS; RDMABRIDGE_LAB_TLS_INITRD names their file system.
func packTLSGuest(t *testing.T) (initrd string) {
	t.Helper()
	if initrd = os.Getenv("RDMABRIDGE_LAB_TLS_INITRD"); initrd != "" {
		return initrd
	}
	initrd = filepath.Join(t.TempDir(), "guest.cpio")
	command(t, 3*time.Minute, "../../deploy/lab/mkinitrd.sh", "--tls", initrd)
	return initrd
}

// A tlsLab is a guest with TLS, and a bridge in front of it.
type tlsLab struct {
	g   *guest
	b   *bridgeProcess
	ca  *tlstest.CA
	dir string // of all certificates; the guest's /host/pki

	revoked *tlstest.Pair // will be revoked

	either, required, mutual, plain int // ports of the bridge's listeners
}

// certify makes all certificates. tlshd and the bridge trust the same CA.
func (l *tlsLab) certify(t *testing.T) {
	t.Helper()
	l.dir = filepath.Join(l.g.dir, "pki")
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l.ca = tlstest.NewCA(t, "the lab's CA")
	tlstest.Write(t, l.dir, "ca.pem", l.ca.PEM())
	tlstest.Write(t, l.dir, "crl.pem", l.ca.CRL(t))
	for name, host := range map[string]string{"server": "guest.lab", "client": "client.lab", "bridge": "bridge.lab"} {
		l.issue(t, l.ca, name, tlstest.Subject{Name: name, Names: []string{host}})
	}
	l.revoked = l.issue(t, l.ca, "revoked", tlstest.Subject{Name: "revoked", Names: []string{"revoked.lab"}})
	l.issue(t, l.ca, "expired", tlstest.Subject{Name: "expired", Names: []string{"expired.lab"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour)})
	l.issue(t, tlstest.NewCA(t, "another CA"), "stranger", tlstest.Subject{Name: "stranger", Names: []string{"client.lab"}})
}

func (l *tlsLab) issue(t *testing.T, ca *tlstest.CA, name string, s tlstest.Subject) *tlstest.Pair {
	t.Helper()
	p := ca.Issue(t, s)
	tlstest.Write(t, l.dir, name+".key", p.Key)
	tlstest.Write(t, l.dir, name+".pem", p.Cert)
	return p
}

// bridge starts the bridge. NFSv3's MOUNT has no TLS, whatever the mount's options say, and needs a listener
// that does not require it.
func (l *tlsLab) bridge(t *testing.T) {
	t.Helper()
	p := freePorts(t, 5)
	l.either, l.required, l.mutual, l.plain = p[0], p[1], p[2], p[3]
	listener := func(name string, port int, upstream, tls string) string {
		return fmt.Sprintf("  - {name: %s, address: \"127.0.0.1:%d\", transport: tcp, upstream: %s, routes: [{program: mount, upstream: mountd}]%s}\n", name, port, upstream, tls)
	}
	own := fmt.Sprintf("certificate: %[1]s/bridge.pem, key: %[1]s/bridge.key", l.dir)
	l.b = newBridgeWith(t, l.either, p[4], "listeners:\n"+
		listener("either", l.either, "storage", ", tls: {mode: optional, "+own+"}")+
		listener("required", l.required, "storage", ", tls: {mode: required, "+own+"}")+
		listener("mutual", l.mutual, "storage", fmt.Sprintf(", tls: {mode: required, %s, client: {ca: %[2]s/ca.pem, crl: %[2]s/crl.pem}}", own, l.dir))+
		listener("plain", l.plain, "secured", "")+
		fmt.Sprintf(`
upstreams:
  - {name: storage, transport: rdma, provider: iwarp, endpoints: ["127.0.0.1:%d"], pool: {connections: 4, credits: 128}}
  - {name: mountd, transport: tcp, endpoints: ["127.0.0.1:%d"]}
  - {name: secured, transport: tcp, endpoints: ["127.0.0.1:%d"], pool: {connections: 2}, tls: {mode: required, ca: %s/ca.pem, %s, server_name: guest.lab}}
memory: {budget: 256MiB}
reload: {watch: 100ms}
admin: {address: 127.0.0.1:%d}
log: {level: info, format: json}
`, l.g.rdma, l.g.mount, l.g.nfs, l.dir, own, p[4]))
	l.b.start(t)
}

// far is the listener at port for a client that mounts with these options.
func (l *tlsLab) far(port int, opts string) farEnd {
	return farEnd{nfs: port, mount: l.either, host: "bridge.lab", env: "OPTS=" + opts}
}

// tlsFiles tests files with little data: all that is special here is the way to the server.
const tlsFiles = "NAMES=200 LOCKS=no SIZES='0 1 3 4095 4096 65537 1000003' /lab/files.sh"

// testDirect has no bridge: the client mounts the server of the same guest.
func (l *tlsLab) testDirect(t *testing.T) {
	for v, sec := range map[string]string{"3": "tls", "4.2": "mtls"} {
		if v == "3" && !labFull() {
			continue
		}
		t.Run(sec+"/"+v, func(t *testing.T) {
			news := l.tlshd(t)
			l.g.job(t, 3*time.Minute, farEnd{nfs: 2049, mount: 20048, host: "guest.lab", env: "OPTS=xprtsec=" + sec}.script(tlsFiles, v))
			// Each mount is a handshake, of which both sides write.
			if n := strings.Count(news(), "was successful"); n < 2 || strings.Contains(news(), "failed") {
				t.Errorf("%d handshakes of either side succeeded; tlshd says:\n%s", n, news())
			}
		})
	}
}

// tlshd returns a function that returns what tlshd has written since tlshd was called.
func (l *tlsLab) tlshd(t *testing.T) (news func() string) {
	t.Helper()
	read := func() []byte {
		text, err := os.ReadFile(filepath.Join(l.dir, "tlshd.log"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := len(read())
	return func() string { return string(read()[before:]) }
}

func (l *tlsLab) testFiles(t *testing.T) {
	mounts := 0
	for sec, port := range map[string]int{"tls": l.required, "mtls": l.mutual} {
		versions := []string{"3", "4.2"}
		if !labFull() {
			versions = map[string][]string{"tls": {"3"}, "mtls": {"4.2"}}[sec]
		}
		mounts += len(versions)
		for _, v := range versions {
			t.Run(sec+"/"+v, func(t *testing.T) {
				l.g.job(t, 3*time.Minute, l.far(port, "xprtsec="+sec).script(tlsFiles, v))
				l.b.wantQuiet(t)
			})
		}
	}
	if n := l.b.metric(t, "listener_tls_handshakes_total{"); n < float64(2*mounts) { // files.sh mounts more than once
		t.Errorf("%.0f handshakes, want at least two for each mount", n)
	}
}

// testPlain: a listener that requires TLS refuses a client without.
func (l *tlsLab) testPlain(t *testing.T) {
	for _, v := range []string{"3", "4.2"} {
		t.Run(v, func(t *testing.T) {
			t.Log(l.g.job(t, 2*time.Minute, l.far(l.required, "xprtsec=none").script("/lab/refused.sh", v)))
			l.wantWarnings(t, `"event":"call_without_tls"`)
		})
	}
}

// testRefused: clients whose certificates are not good.
func (l *tlsLab) testRefused(t *testing.T) {
	for name, reason := range map[string]string{"stranger": "unknown_authority", "expired": "expired"} {
		t.Run(name, func(t *testing.T) {
			l.g.job(t, time.Minute, "/lab/tls.sh client /host/pki "+name)
			t.Log(l.g.job(t, 2*time.Minute, l.far(l.mutual, "xprtsec=mtls").script("/lab/refused.sh", "4.2")))
			l.wantRefused(t, reason)
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Log(l.g.job(t, 2*time.Minute, l.far(l.mutual, "xprtsec=tls").script("/lab/refused.sh", "4.2")))
		l.wantRefused(t, "no_certificate")
	})
}

// wantRefused fails unless the bridge has logged refusals for that reason, and no other warning.
func (l *tlsLab) wantRefused(t *testing.T, reason string) {
	t.Helper()
	l.wantWarnings(t, `"event":"client_tls_failed","listener":"mutual"`, fmt.Sprintf(`"reason":%q`, reason))
}

// wantWarnings fails unless the bridge has logged warnings, each with all of these texts.
func (l *tlsLab) wantWarnings(t *testing.T, texts ...string) {
	t.Helper()
	lines := l.b.news(t, "warn", "error", "fatal", "panic")
	if len(lines) == 0 {
		t.Error("the bridge has logged no refusal")
	}
	for _, line := range lines {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				t.Errorf("the bridge wrote, where %s is due: %s", text, line)
			}
		}
	}
}

// connectsAgain bounds how long Linux's client may take for a system call for which it has to connect again. After refusals
// it pauses, for 40 s on a host that was busy.
const connectsAgain = 4 * time.Minute

// testRevoked: a client's certificate is revoked while it has a mount. Every system call fails at once, and the mount
// is as good as before when the client has another certificate.
func (l *tlsLab) testRevoked(t *testing.T) {
	far := l.far(l.mutual, "xprtsec=mtls")
	l.g.job(t, time.Minute, "/lab/tls.sh client /host/pki revoked")
	l.g.job(t, time.Minute, far.script("sh -c '. /lab/lib.sh; do_mount; echo before > /mnt/revoked' sh", "4.2"))
	l.b.wantQuiet(t)

	tlstest.Write(t, l.dir, "crl.pem", l.ca.CRL(t, l.revoked))
	refusals := func() float64 {
		return l.b.metric(t, `listener_tls_failures_total{listener="mutual",reason="revoked"}`)
	}
	waitFor(t, 20*time.Second, "the end of the connection", func() bool { return refusals() > 0 })
	t.Log(l.g.job(t, connectsAgain, "echo after > /mnt/revoked && exit 1; cat /export/revoked; [ $(cat /export/revoked) = before ]"))
	// One is of the connection that was.
	waitFor(t, connectsAgain, "the refusal of another connection", func() bool { return refusals() > 1 })
	l.wantRefused(t, "revoked")

	l.g.job(t, time.Minute, "/lab/tls.sh client /host/pki client")
	l.g.job(t, connectsAgain, `echo after > /mnt/revoked || exit
umount /mnt || exit
[ $(cat /export/revoked) = after ] || exit
rm /export/revoked`)
	l.b.wantQuiet(t)
	l.g.job(t, time.Minute, "/lab/tls.sh client /host/pki revoked")
	t.Log(l.g.job(t, 2*time.Minute, far.script("/lab/refused.sh", "4.2")))
	l.wantRefused(t, "revoked")
	l.g.job(t, time.Minute, "/lab/tls.sh client /host/pki client")
}

// testRotated: the bridge's certificate is replaced several times under load. The client's connection stays, and
// later clients see the new certificate.
func (l *tlsLab) testRotated(t *testing.T) {
	const enough = "rotated"
	handshakes := func() float64 { return l.b.metric(t, `listener_tls_handshakes_total{kind="full",listener="mutual"}`) }
	j := l.g.begin(t, l.far(l.mutual, "xprtsec=mtls").script("UNTIL=/host/"+enough+" SIZE=1m /lab/fio.sh", "4.2"))
	waitFor(t, time.Minute, "fio", func() bool { return j.said("fio runs") })
	before := handshakes()
	for range 3 {
		own := l.issue(t, l.ca, "bridge", tlstest.Subject{Name: "bridge", Names: []string{"bridge.lab"}})
		waitFor(t, 10*time.Second, "the new certificate", func() bool { return l.serverSerial(t).Cmp(own.Leaf.SerialNumber) == 0 })
		l.b.waitCalls(t, "mutual", 100)
	}
	if j.said("fio ran") {
		t.Error("fio ended before the last certificate was replaced")
	}
	if n := handshakes() - before; n != 0 {
		t.Errorf("%.0f handshakes under load, want none: the connection stays", n)
	}
	if err := os.WriteFile(filepath.Join(l.g.dir, enough), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Log(j.wait(t, 3*time.Minute))
	if n := handshakes() - before; n == 0 { // fio.sh mounts again in the end
		t.Error("no handshake with the new certificate")
	}
	l.b.wantQuiet(t)
}

// serverSerial connects to the bridge and returns the serial number of its certificate.
func (l *tlsLab) serverSerial(t *testing.T) *big.Int {
	t.Helper()
	nc, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.required))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c, err := proxytest.StartTLS(nc, &tls.Config{RootCAs: l.ca.Pool(), ServerName: "bridge.lab", NextProtos: []string{"sunrpc"}, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber
}

// testUpstream: the bridge is the client. The upstream requires TLS, and for NFSv4.2 the server requires a certificate,
// too. For NFSv3 it cannot in this guest: whenever mountd answers MOUNT, it takes back what tls.sh has told the kernel.
func (l *tlsLab) testUpstream(t *testing.T) {
	far := farEnd{nfs: l.plain, mount: l.either, host: "bridge.lab"}
	l.g.job(t, 3*time.Minute, far.script(tlsFiles, "3"))
	l.g.job(t, time.Minute, "/lab/tls.sh export mtls")
	for _, sec := range []string{"none", "tls"} { // what the server thinks of a client without, and of one without certificate
		direct := farEnd{nfs: 2049, mount: 20048, host: "guest.lab", env: "OPTS=xprtsec=" + sec}
		t.Log(l.g.job(t, time.Minute, direct.script("/lab/refused.sh", "4.2")))
	}
	l.g.job(t, 3*time.Minute, far.script(tlsFiles, "4.2"))
	l.b.wantQuiet(t)
	if n := l.b.metric(t, `upstream_tls_connections{upstream="secured"}`); n < 1 {
		t.Errorf("%.0f connections to the server have TLS", n)
	}
	l.g.job(t, time.Minute, "/lab/tls.sh export none")
}

// testChain has RDMA at both ends of two bridges, and TLS between them:
//
//	another guest's NFS client -- iWARP --> a second rdmabridge -- TLS --> rdmabridge -- iWARP --> the guest's knfsd
func (l *tlsLab) testChain(t *testing.T) {
	near := newGuest(t, packGuest(t), "--append", "lab.rdma=siw")
	near.boot(t)
	p := freePorts(t, 3)
	first := newBridgeWith(t, p[0], p[2], fmt.Sprintf(`
listeners:
  - {name: nfs, address: "127.0.0.1:%d", transport: rdma, provider: iwarp, upstream: far}
  - {name: mount, address: "127.0.0.1:%d", transport: tcp, upstream: far}
upstreams:
  - {name: far, transport: tcp, endpoints: ["127.0.0.1:%d"], pool: {connections: 2}, tls: {mode: required, ca: %[5]s/ca.pem, certificate: %[5]s/client.pem, key: %[5]s/client.key, server_name: bridge.lab}}
memory: {budget: 128MiB}
admin: {address: 127.0.0.1:%[4]d}
log: {level: info, format: json}
`, p[0], p[1], l.mutual, p[2], l.dir))
	first.start(t)
	// The client looks at the server's files past the bridges.
	near.job(t, time.Minute, fmt.Sprintf("mkdir /srv && mount.nfs 10.0.2.2:/export /srv -o vers=3,nolock,noac,lookupcache=none,proto=tcp,port=%d,mountport=%d,mountproto=tcp", l.g.nfs, l.g.mount))
	far := farEnd{nfs: p[0], mount: p[1], host: "bridge.lab", env: "PROTO=rdma SERVER=/srv"}
	chunks := l.b.shapes(t)
	for _, x := range []struct{ vers, command string }{{"3", "SIZE=1m /lab/fio.sh"}, {"4.2", strings.Replace(tlsFiles, "200", "20", 1)}} {
		t.Run(x.vers, func(t *testing.T) {
			near.job(t, 5*time.Minute, far.script(x.command, x.vers))
			first.wantQuiet(t)
			l.b.wantQuiet(t)
		})
	}
	if n := first.metric(t, `upstream_tls_connections{upstream="far"}`); n < 1 {
		t.Errorf("%.0f connections between the bridges have TLS", n)
	}
	if got := l.b.shapes(t).since(chunks); got.readChunks == 0 || got.writeChunks == 0 {
		t.Errorf("%+v, want data in chunks", got)
	}
	first.stop(t)
}
