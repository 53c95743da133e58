package demo

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestReadRecord: no length that go-nfs would allocate by is greater than the record it is in.
func TestReadRecord(t *testing.T) {
	header := func(program, procedure uint32, args ...uint32) []byte {
		return testkit.Words(append([]uint32{1, 0, 2, program, 3, procedure, 0, 0, 0, 0}, args...)...)
	}
	for _, tt := range []struct {
		name string
		m    []byte
		bad  bool
	}{
		{"NULL", header(100003, 0), false},
		{"GETATTR", header(100003, 1, 4, 9), false},
		{"a handle of 2 GiB", header(100003, 1, 0x7fffffff, 9), true},
		{"a handle of 4 GiB", header(100003, 1, 0xffffffff, 9), true},
		{"a name of 2 GiB", header(100003, 3, 4, 9, 0x7fffffff), true},
		{"data of 2 GiB", header(100003, 7, 4, 9, 0, 0, 4, 0, 0x7fffffff), true},
		{"a link's target of 2 GiB", header(100003, 10, 4, 9, 4, 9, 0, 0, 0, 0, 0, 0, 0x7fffffff), true},
		{"a MOUNT path of 2 GiB", header(mountProgram, 1, 0x7fffffff), true},
		{"a credential of 2 GiB", testkit.Words(1, 0, 2, 100003, 3, 0, 1, 0x7fffffff, 0, 0), true},
		{"a record of 2 GiB", nil, true},
	} {
		record := testkit.Record(tt.m)
		if tt.m == nil {
			record = testkit.Words(0xffffffff)
		}
		var b bytes.Buffer
		err := readRecord(bytes.NewReader(record), &b)
		if tt.bad != errors.Is(err, errRecord) || !tt.bad && !bytes.Equal(b.Bytes(), record) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	var b bytes.Buffer
	if err := readRecord(bytes.NewReader(testkit.Record(header(100003, 6, 4, 9, 0, 0, 0xffffffff))), &b); err != nil {
		t.Fatal(err)
	}
	if got, want := b.Bytes()[b.Len()-4:], testkit.Words(maxRead); !bytes.Equal(got, want) {
		t.Errorf("READ has the count %x, want %x", got, want)
	}
}
