package proxy

import (
	"testing"
	"unsafe"
)

// Thousands of clients are connected and idle. Each of these structs fills a size class of Go's
// heap, so that a field more costs each client a multiple of its length.
func TestIdleClientSizes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		size, max uintptr
	}{
		{"tcpClient", unsafe.Sizeof(tcpClient{}), 576},
		{"rdmaClient", unsafe.Sizeof(rdmaClient{}), 576},
		{"host", unsafe.Sizeof(host{}), 64},
		{"hostShare", unsafe.Sizeof(hostShare{}), 96},
		{"clientQueue", unsafe.Sizeof(clientQueue{}), 208},
	} {
		if tt.size > tt.max {
			t.Errorf("%s has %d octets, more than %d", tt.name, tt.size, tt.max)
		}
	}
}

// TestCallSize: a call has no more octets than its size class.
func TestCallSize(t *testing.T) {
	if n := unsafe.Sizeof(call{}); n > 1024 {
		t.Errorf("a call has %d octets, more than 1024", n)
	}
}
