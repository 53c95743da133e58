//go:build ibverbs

package ibverbs

import (
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// TestInlineInvalidate checks that short Sends are inline, but on siw no Send With Invalidate: siw fails
// it and ends the connection.
func TestInlineInvalidate(t *testing.T) {
	for _, tt := range []struct {
		driver     string
		invalidate fabric.Handle
		inline     bool
	}{
		{"mlx5_core", 0, true},
		{"mlx5_core", 7, true},
		{"siw", 0, true},
		{"siw", 7, false},
	} {
		et := newEventTest(t, "127.0.0.1:0")
		Pretend(t, tt.driver)
		ln := et.dial()
		et.dialLoop.Do(func() {
			defer ln.c.Close(errors.New("enough"))
			id := ln.own.next()
			if err := ln.c.PostSend(id, fabric.Send{Parts: [][]byte{[]byte("a"), []byte("b")}, Invalidate: tt.invalidate}); err != nil {
				t.Errorf("%s: PostSend: %v", tt.driver, err)
				return
			}
			ln.own.posted[id] = 0
			if got := ln.c.wrs[len(ln.c.wrs)-1].flags&flagInline != 0; got != tt.inline {
				t.Errorf("%s: a Send that invalidates %d is inline: %v", tt.driver, tt.invalidate, got)
			}
		})
		et.mustEnd(ln, "enough")
		et.close()
	}
}
