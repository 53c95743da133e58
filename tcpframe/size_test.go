package tcpframe

import (
	"testing"
	"unsafe"

	"github.com/rdmabridge/rdmabridge/tcpframe/eventloop"
)

// Thousands of connections are idle. A Conn fills a size class of Go's heap, so that a field more
// costs each connection a multiple of its length.
func TestIdleConnSizes(t *testing.T) {
	if n := unsafe.Sizeof(Conn{}); n > 480 {
		t.Errorf("Conn has %d octets, more than 480", n)
	}
	if n := unsafe.Sizeof(eventloop.Socket{}); n > 208 {
		t.Errorf("socket has %d octets, more than 208", n)
	}
}
