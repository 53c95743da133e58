package rdmaside

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// TestDialError: the address stands once in an error of dialling.
func TestDialError(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 1, 0, 5), Port: 20049}, Err: syscall.ECONNREFUSED}
	for want, err := range map[string]error{
		"rdmaside: dial tcp 10.1.0.5:20049: connection refused": refused,
		"rdmaside: dial 10.1.0.5:20049: no RDMA":                errors.New("no RDMA"),
	} {
		if got := dialError("10.1.0.5:20049", err); got.Error() != want || !errors.Is(got, err) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestFateString(t *testing.T) {
	for f, want := range map[Fate]string{NotSent: "not_sent", InLimbo: "in_limbo", Answered: "answered", 9: "unknown"} {
		if f.String() != want {
			t.Errorf("%d: %s, want %s", f, f, want)
		}
	}
	err := &CallError{XID: 0x10, Fate: InLimbo, Err: ErrDeadline}
	if want := "rdmaside: call 0x00000010 in_limbo: " + ErrDeadline.Error(); err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}
