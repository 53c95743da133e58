package bench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
)

// testCert makes a certificate for localhost, and a pool that trusts it.
func testCert(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// terminate ends TLS, as Go has it, in front of a server. With probe it answers the probe of RFC 9289 first.
func terminate(t *testing.T, backend string, cert tls.Certificate, probe bool) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	serve := func(c net.Conn) {
		defer c.Close()
		if probe {
			if _, err := io.ReadFull(c, make([]byte, markLen+len(tlsProbe))); err != nil {
				return
			}
			c.Write(append(xdr.AppendWords(nil, 1<<31|uint32(len(tlsReply))), tlsReply...))
		}
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		b, err := net.Dial("tcp", backend)
		if err != nil {
			return
		}
		defer b.Close()
		go func() { io.Copy(b, s); b.Close() }()
		io.Copy(s, b)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return ln.Addr().String()
}

// A load over TLS, with the probe of RFC 9289 and without, is what it is without TLS.
func TestLoadTLS(t *testing.T) {
	cert, pool := testCert(t)
	s, l := startServer(t, ServerOptions{Full: true}), newLoader(t)
	for _, scheme := range []string{schemeDirect, schemeRPC} {
		addr := terminate(t, s.Addr().String(), cert, scheme == schemeRPC)
		for _, x := range works {
			load := x.load
			load.Target, load.TLS = scheme+addr, &tls.Config{RootCAs: pool, ServerName: "localhost"}
			load.Idle, load.Full = 1, true
			load.Warmup, load.Timeout = 10*time.Millisecond, 20*time.Second
			var r *Result
			var err error
			// A machine that is busy needs longer for the first Call.
			for load.Duration = 50 * time.Millisecond; load.Duration < 15*time.Second; load.Duration *= 6 {
				if r, err = l.Run(context.Background(), load); err == nil {
					break
				}
			}
			if err != nil || r.CallsPerSecond == 0 {
				t.Errorf("%s %s: %+v, %v", scheme, x.name, r, err)
			}
		}
	}
	if n := s.Wrong(); n > 0 {
		t.Errorf("%d Calls had wrong data", n)
	}
}

// A load does not go on without TLS.
func TestLoadTLSRefused(t *testing.T) {
	cert, pool := testCert(t)
	s, l := startServer(t, ServerOptions{}), newLoader(t)
	addr := terminate(t, s.Addr().String(), cert, false)
	load := Load{Conns: 1, Depth: 1, Work: Work{Call: 100, Reply: 100}, Duration: time.Second, Timeout: 5 * time.Second}
	for _, tt := range []struct {
		target string
		config *tls.Config
		want   string
	}{
		{schemeDirect + addr, nil, "--tls-ca FILE is missing"},
		{schemeDirect + addr, &tls.Config{RootCAs: pool, ServerName: "another"}, "another"},
		{schemeRPC + s.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "localhost"}, "does not offer TLS"},
	} {
		load.Target, load.TLS = tt.target, tt.config
		if _, err := l.Run(context.Background(), load); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.target, err, tt.want)
		}
	}
}
