package iwarp

import (
	"testing"
	"unsafe"
)

// Thousands of connections are idle. A qp fills a size class of Go's heap, so that a field more
// costs each connection a multiple of its length.
func TestIdleConnSizes(t *testing.T) {
	if n := unsafe.Sizeof(qp{}); n > 1536 {
		t.Errorf("qp has %d octets, more than 1536", n)
	}
	if n := unsafe.Sizeof(conn{}); n > 480 {
		t.Errorf("conn has %d octets, more than 480", n)
	}
}
