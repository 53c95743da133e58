package tcpframe

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
)

// Content types. RFC 8446 Section 5.1.
const (
	contentAlert     = 21
	contentHandshake = 22
	contentData      = 23
)

// A crafter is a client that encrypts records of its own, such as no library sends, once Go's TLS has done the handshake.
type crafter struct {
	*tlsPeer
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

// craft connects and takes the keys of the client's direction.
func (y *tlsTest) craft() *crafter {
	y.t.Helper()
	var log bytes.Buffer
	c := clientConfig()
	c.KeyLogWriter = &log
	p := y.secure(c)
	if s := p.ConnectionState(); s.CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
		y.t.Skipf("no AES in this processor: cipher suite %x", s.CipherSuite)
	}
	x := &crafter{tlsPeer: p}
	for line := range strings.Lines(log.String()) {
		if f := strings.Fields(line); f[0] == "CLIENT_TRAFFIC_SECRET_0" {
			x.secret = must(hex.DecodeString(f[2]))
		}
	}
	x.rekey()
	return x
}

// expand is HKDF-Expand-Label without a context. RFC 8446 Section 7.1.
func expand(secret []byte, label string, n int) []byte {
	label = "tls13 " + label
	info := append(binary.BigEndian.AppendUint16(nil, uint16(n)), byte(len(label)))
	info = append(append(info, label...), 0)
	return must(hkdf.Expand(sha256.New, secret, string(info), n))
}

// rekey makes the keys of the secret.
func (x *crafter) rekey() {
	x.aead = must(cipher.NewGCM(must(aes.NewCipher(expand(x.secret, "key", 16)))))
	x.iv, x.seq = expand(x.secret, "iv", 12), 0
}

// record encrypts a record. RFC 8446 Section 5.2.
func (x *crafter) record(typ byte, content []byte, padding int) []byte {
	inner := append(append(bytes.Clone(content), typ), make([]byte, padding)...)
	head := append([]byte{contentData, 3, 3}, binary.BigEndian.AppendUint16(nil, uint16(len(inner)+x.aead.Overhead()))...)
	nonce := bytes.Clone(x.iv)
	for i, b := range binary.BigEndian.AppendUint64(nil, x.seq) {
		nonce[4+i] ^= b
	}
	x.seq++
	return x.aead.Seal(head, nonce, inner, head)
}

// keyUpdate encrypts a KeyUpdate, and goes on with the next keys. RFC 8446 Section 4.6.3.
func (x *crafter) keyUpdate(requested byte) []byte {
	b := x.record(contentHandshake, []byte{24, 0, 0, 1, requested}, 0)
	x.secret = expand(x.secret, "traffic upd", 32)
	x.rekey()
	return b
}

// raw sends octets as they are.
func (x *crafter) raw(b []byte) {
	x.t.Helper()
	if _, err := x.tcp.Write(b); err != nil && !isReset(err) {
		x.t.Fatalf("write: %v", err)
	}
}

// KeyUpdates, in both directions, disturb nothing, and padding is no data.
func TestTLSKeyUpdate(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	x := y.craft()
	for i := range byte(10) {
		want := pattern(5000, i)
		x.raw(x.keyUpdate(i % 2))
		x.raw(x.record(contentData, fragment(true, want), int(i)*100))
		if got := x.readRecord(); !bytes.Equal(got, want) {
			t.Fatalf("another record came back after KeyUpdate %d", i)
		}
	}
	x.tcp.Close()
	y.wantNone()
}

// Records without data, and handshake messages that a client does not send, end the connection.
func TestTLSFlood(t *testing.T) {
	t.Parallel()
	y := newTLSTest(t, EngineOptions{}, ListenOptions{}, newTLS(t, serverConfig()), nil)
	for _, tt := range []struct {
		name string
		next func(*crafter) []byte
		want TLSReason
	}{
		{"KeyUpdates", func(x *crafter) []byte { return x.keyUpdate(0) }, TLSFlood},
		{"KeyUpdates that want another", func(x *crafter) []byte { return x.keyUpdate(1) }, TLSFlood},
		{"KeyUpdates with data", func(x *crafter) []byte {
			return append(x.keyUpdate(1), x.record(contentData, fragment(true, pattern(8, 1)), 0)...)
		}, TLSFlood},
		{"empty records", func(x *crafter) []byte { return x.record(contentData, nil, 0) }, TLSFlood},
		{"empty records of full length", func(x *crafter) []byte { return x.record(contentData, nil, 16000) }, TLSFlood},
		{"alerts", func(x *crafter) []byte { return x.record(contentAlert, []byte{1, 90}, 0) }, TLSFlood},
		{"a session ticket", func(x *crafter) []byte {
			return x.record(contentHandshake, append([]byte{4, 0, 0, 13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 7}, 0, 0)[:17], 0)
		}, TLSGarbage},
		{"a ClientHello", func(x *crafter) []byte { return x.record(contentHandshake, []byte{1, 0, 0, 1, 0}, 0) }, TLSGarbage},
		{"a record without a type", func(x *crafter) []byte { return x.record(0, nil, 100) }, TLSGarbage},
		{"another type", func(x *crafter) []byte { return x.record(77, []byte("x"), 0) }, TLSGarbage},
		{"a wrong tag", func(x *crafter) []byte { b := x.record(contentData, nil, 9); b[len(b)-1]++; return b }, TLSGarbage},
		{"a long record", func(*crafter) []byte { return append([]byte{contentData, 3, 3, 0xff, 0xff}, make([]byte, 1000)...) }, TLSGarbage},
		{"plain text", func(*crafter) []byte { return fragment(true, pattern(100, 1)) }, TLSGarbage},
	} {
		x := y.craft()
		before := y.failures(tt.want)
		go func() {
			for range 2000 {
				if _, err := x.tcp.Write(tt.next(x)); err != nil {
					return
				}
			}
		}()
		(&peer{t, x.tcp}).wantEnd(tt.name)
		x.tcp.Close()
		t.Log(tt.name)
		y.wantFailure(tt.want, before+1)
	}
	y.wantNone()
}

// A pass opens a bounded number of records, however small they are, and the connection goes on where it was.
func TestTLSSmallRecords(t *testing.T) {
	t.Parallel()
	const n = 20 * openedPerPass
	passes := make(map[uint64]int)
	done := make(chan struct{})
	seen := 0
	y := newTLSTest(t, EngineOptions{Loops: 1}, ListenOptions{}, newTLS(t, serverConfig()), func(h *secureEcho) {
		h.record = func(c *Conn, b Buffer) {
			if want := pattern(8, byte(seen)); !bytes.Equal(b.Bytes(), want) {
				t.Errorf("record %d differs", seen)
			}
			b.Release()
			passes[c.Loop().Pass()]++
			if seen++; seen == n {
				close(done)
			}
		}
	})
	x := y.craft()
	var all []byte
	for i := range n {
		all = append(all, x.record(contentData, fragment(true, pattern(8, byte(i))), i%2)...)
	}
	x.raw(all)
	<-done
	for pass, k := range passes {
		if k > openedPerPass {
			t.Errorf("pass %d has opened %d records", pass, k)
		}
	}
	x.tcp.Close()
	y.wantNone()
}
