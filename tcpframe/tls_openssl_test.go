package tcpframe

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// openssl returns a command of OpenSSL, the second implementation of TLS in these tests.
func openssl(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	program, err := exec.LookPath("openssl")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("openssl is not installed")
		}
		t.Skip("openssl is not installed")
	}
	return exec.Command(program, args...)
}

// writeCert writes a certificate, its chain and its key to files.
func writeCert(t *testing.T, c tls.Certificate) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	var all []byte
	for _, der := range c.Certificate {
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	der := must(x509.MarshalPKCS8PrivateKey(c.PrivateKey))
	if err := os.WriteFile(cert, all, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// A tunnel listens, and passes one connection on to another socket, octet by octet as they are.
func tunnel(t *testing.T, to net.Conn) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() { io.Copy(to, c); to.Close() }()
		io.Copy(c, to)
		c.Close()
	}()
	return ln.Addr().String()
}

// OpenSSL's client connects with a certificate and ALPN, updates its keys, and ends in order.
func TestTLSOpenSSLClient(t *testing.T) {
	t.Parallel()
	config := serverConfig()
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, testCA().pool
	states := make(chan *tls.ConnectionState, 1)
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, config), func(h *secureEcho) {
		h.secured = func(_ *Conn, s *tls.ConnectionState) { states <- s }
	})
	cert, key := writeCert(t, testCA().issue("client.test", nil))
	ca, _ := writeCert(t, testCert())
	cmd := openssl(t, "s_client", "-connect", tunnel(t, y.ask().TCPConn), "-cert", cert, "-key", key, "-CAfile", ca, "-verify_return_error",
		"-servername", "server.test", "-alpn", alpn, "-tls1_3", "-nocommands", "-quiet", "-no_ign_eof")
	in := must(cmd.StdinPipe())
	out := bufio.NewReader(must(cmd.StdoutPipe()))
	var log testkit.Log
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range byte(5) {
		want := pattern(50_000, i)
		in.Write(fragment(true, want))
		if got, err := readRecord(out, nil); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("record %d: %v; %s", i, err, log.String())
		}
	}
	if s := <-states; s.NegotiatedProtocol != alpn || s.PeerCertificates[0].Subject.CommonName != "client.test" {
		t.Errorf("the handshake has agreed on %q with %v", s.NegotiatedProtocol, s.PeerCertificates)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("s_client: %v; %s", err, log.String())
	}
	y.wantNone()
}

// KeyUpdates of OpenSSL's client, which its commands k and K send.
func TestTLSOpenSSLKeyUpdate(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	cmd := openssl(t, "s_client", "-connect", tunnel(t, y.ask().TCPConn), "-tls1_3", "-alpn", alpn)
	in := must(cmd.StdinPipe())
	var out testkit.Log
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "s_client is connected", func() bool { return y.counts().conns.Value() == 1 })
	for i := range 6 {
		in.Write([]byte("Kk"[i%2:][:1] + "\n"))
		// s_client takes one command from each read, so the next may come only when it has read this one.
		testkit.Eventually(t, "KEYUPDATE", func() bool { return strings.Count(out.String(), "KEYUPDATE") == i+1 })
	}
	if y.counts().conns.Value() != 1 {
		t.Error("the connection has ended")
	}
	in.Write([]byte("Q\n"))
	if err := cmd.Wait(); err != nil {
		t.Errorf("s_client: %v; %s", err, out.String())
	}
	if err := y.last().wait(t, "Q"); err != io.EOF {
		t.Errorf("Closed(%v), want EOF", err)
	}
	y.wantNone()
}

// OpenSSL's server, behind a stub that answers the probe.
func TestTLSOpenSSLServer(t *testing.T) {
	t.Parallel()
	cert, key := writeCert(t, testCert())
	cmd := openssl(t, "s_server", "-accept", "127.0.0.1:0", "-cert", cert, "-key", key, "-tls1_3", "-alpn", alpn, "-rev")
	var out testkit.Log
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var addr string // no other test can get the port
	testkit.Eventually(t, "s_server listens", func() bool {
		_, line, _ := strings.Cut(out.String(), "ACCEPT ")
		line, _, whole := strings.Cut(line, "\n")
		addr = line
		return whole
	})
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	go func() {
		c, err := front.Accept()
		if err != nil {
			return
		}
		if _, err := readRecord(c, nil); err != nil {
			return
		}
		c.Write(fragment(true, starttls))
		to, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		go func() { io.Copy(to, c); to.Close() }()
		io.Copy(c, to)
		c.Close()
	}()
	e := startEngine(t, EngineOptions{})
	h := &secureEcho{recorder: newRecorder(), tls: newTLS(t, clientConfig())}
	secured := make(chan *tls.ConnectionState, 1)
	h.secured = func(_ *Conn, s *tls.ConnectionState) { secured <- s }
	h.opened = func(c *Conn) { c.Send([][]byte{probe}, nil) }
	h.record = func(c *Conn, b Buffer) { b.Release(); c.StartTLS(h.tls) }
	c, err := dial(e, front.Addr().String(), DialOptions{}, recordOf{h})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case s := <-secured:
		if s.NegotiatedProtocol != alpn {
			t.Errorf("the protocol is %q", s.NegotiatedProtocol)
		}
	case err := <-h.done:
		t.Fatalf("Closed(%v); %s", err, out.String())
	}
	// s_server -rev sends a line back, but reversed. That is no record, which ends the connection.
	c.Loop().Post(lineTask{c})
	if err := h.wait(t, "the line is back"); err == nil || !strings.Contains(err.Error(), "record of at least") {
		t.Errorf("Closed(%v)", err)
	}
}

type lineTask struct{ c *Conn }

func (t lineTask) Run() { t.c.Send([][]byte{[]byte("a line of text\n")}, nil) }
