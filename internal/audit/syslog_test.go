package audit

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

var syslogMessage = regexp.MustCompile(`^<86>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d) \S+ rdmabridge \d+ AUDIT - (\{.*\})$`)

// wantSyslog fails the test unless message is of RFC 5424 and has line.
func wantSyslog(t *testing.T, message []byte, line string) {
	t.Helper()
	if m := syslogMessage.FindSubmatch(message); m == nil || string(m[2]) != line {
		t.Errorf("the server has %q, want a message of RFC 5424 with %s", message, line)
	}
}

// TestSyslogDatagrams: each line is a datagram; a server that starts anew gets the lines after that; a line that is too
// long is told of in its place.
func TestSyslogDatagrams(t *testing.T) {
	for _, network := range []string{"unixgram", "udp"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			listen := func() net.PacketConn {
				if network == "unixgram" {
					address = filepath.Join(t.TempDir(), "log")
				}
				c, err := net.ListenPacket(network, address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				return c
			}
			server := listen()
			address = server.LocalAddr().String()
			s := OpenSyslog(network, address)
			defer s.Close()
			b := make([]byte, 1<<20)
			read := func() []byte {
				t.Helper()
				_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
				n, _, err := server.ReadFrom(b)
				if err != nil {
					t.Fatal(err)
				}
				return b[:n]
			}
			if n, err := s.Write([]byte("{1}\n{2}\n")); n != 8 || err != nil {
				t.Fatalf("Write = %d, %v, want 8 octets", n, err)
			}
			wantSyslog(t, read(), "{1}")
			wantSyslog(t, read(), "{2}")
			long := "{" + strings.Repeat("x", 8<<20) + "}\n"
			if n, err := s.Write([]byte("{3}\n" + long + "{4}\n")); n != 8+len(long) || err != nil {
				t.Errorf("Write with a line that is too long = %d, %v, want %d octets", n, err, 8+len(long))
			}
			wantSyslog(t, read(), "{3}")
			if m := read(); !bytes.Contains(m, []byte(`"event":"missing","lines":1,`)) {
				t.Errorf("in the place of the long line comes %s", m)
			}
			wantSyslog(t, read(), "{4}")
		})
	}
}

// TestSyslogServerStartsAnew: without a server a line is an error, and with another one it is sent.
func TestSyslogServerStartsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	s := OpenSyslog("unixgram", path)
	defer s.Close()
	for range 2 {
		if n, err := s.Write([]byte("{0}\n")); n != 0 || err == nil {
			t.Fatalf("Write without a server = %d, %v, want an error", n, err)
		}
		server, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := s.Write([]byte("{1}\n")); n != 4 || err != nil {
			t.Fatalf("Write = %d, %v, want 4 octets", n, err)
		}
		b := make([]byte, 1024)
		n, err := server.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		wantSyslog(t, b[:n], "{1}")
		server.Close()
		_ = unix.Unlink(path)
	}
}

// TestSyslogFails: without a server a line is missing, and with Deny it is kept; both are told when there is a server again.
func TestSyslogFails(t *testing.T) {
	for _, deny := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "log")
		l := start(Options{Output: OpenSyslog("unixgram", path), Choice: Choice{Deny: deny, Classes: Changes}})
		p := &player{Log: l}
		call, reply := remove3("one", 0)
		p.play("REMOVE", call, reply, observe.TapOver{})
		testkit.Eventually(t, "the line has failed", func() bool { return l.failing.Load() || l.lacks.Load() > 0 })
		if got := l.failing.Load(); got != deny {
			t.Errorf("deny %v: changes are refused: %v", deny, got)
		}
		server, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, 4096)
		n, err := server.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		want := `"event":"missing","lines":1`
		if deny {
			want = `"operation":"REMOVE"`
		}
		if !strings.Contains(string(b[:n]), want) {
			t.Errorf("deny %v: the server has %s, want %s", deny, b[:n], want)
		}
		l.Close()
		server.Close()
	}
}

// TestSyslogTCP: each message has its length before it, and after the server has closed the connection, another is made.
func TestSyslogTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := OpenSyslog("tcp", l.Addr().String())
	defer s.Close()
	for range 2 {
		if n, err := s.Write([]byte("{1}\n{2}\n")); n != 8 || err != nil {
			t.Fatalf("Write = %d, %v, want 8 octets", n, err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		r := bufio.NewReader(c)
		for _, want := range []string{"{1}", "{2}"} {
			length, err := r.ReadString(' ')
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.Atoi(strings.TrimSuffix(length, " "))
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, n)
			if _, err := io.ReadFull(r, b); err != nil {
				t.Fatal(err)
			}
			wantSyslog(t, b, want)
		}
		c.Close()
		// The Output notices by itself; a write before that would be lost.
		for old := s.(*syslog).conn; ; time.Sleep(time.Millisecond) {
			if old.SetDeadline(time.Time{}) != nil {
				break
			}
		}
	}
}
