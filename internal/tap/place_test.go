package tap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	reader "github.com/rdmabridge/rdmabridge/internal/capture"
	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestPlace: a capture has the Calls about files whose names fit, though the LOOKUP that tells a name has only just ended,
// and no Reply came. It counts those whose names are not known, and a bridge without names says what it lacks.
func TestPlace(t *testing.T) {
	var w *names.Watch
	p := newFakeProxy()
	h := NewHub(p, func() *names.Watch { return w })
	o := parse(t, "path=.../wanted")
	if _, err := h.Capture(t.Context(), o, io.Discard, nil); !errors.Is(err, ErrNoNames) {
		t.Errorf("a capture without names: %v", err)
	}
	w = names.Start(names.Options{Loops: 1, Memory: 1 << 20, Sample: 1, Missed: func(uint64) {}})
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	var s Summary
	ended := make(chan error, 1)
	go func() {
		var err error
		s, err = h.Capture(ctx, o, &out, nil)
		ended <- err
	}()
	testkit.Eventually(t, "the capture runs", func() bool { return h.Running() == 1 })
	remove, err := h.Add(w) // it sees each Call after the capture
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	opaque := func(text string) []byte { return xdr.AppendOpaque(nil, []byte(text)) }
	const files = 300
	for i := range files {
		dir, file := fmt.Sprintf("d%03d", i), fmt.Sprintf("f%03d", i)
		name := "wanted"
		if i%3 == 1 {
			name = "other"
		}
		if i%3 != 2 {
			p.carry(&fakeCall{procedure: 3, operation: "LOOKUP", arguments: append(opaque(dir), opaque(name)...), results: append(opaque(file), 0, 0, 0, 0, 0, 0, 0, 0)})
		}
		p.carry(&fakeCall{procedure: 6, operation: "READ", arguments: append(opaque(file), make([]byte, 12)...), results: make([]byte, 16), lost: i%6 == 0})
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	// The directories of the LOOKUPs have no names, and neither have the files without LOOKUP, nor the others: .../other may
	// be anywhere.
	if s.Calls != files/3 || s.Unknown != 4*files/3 {
		t.Errorf("%+v", s)
	}
	c, err := reader.Read(out.Bytes())
	if err != nil || c.Err != nil {
		t.Fatal(err, c.Err)
	}
	all := c.Messages()
	if len(all) != 3*files/3 {
		t.Errorf("%d messages", len(all))
	}
	for i := range all {
		b, _ := all[i].Payload()
		var n int
		if _, err := fmt.Sscanf(string(b[len(b)-16:]), "f%03d", &n); err == nil && n%3 != 0 {
			t.Errorf("a READ of file %d", n)
		}
	}
}
