package demo

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// header is the header of a Call with XID 1, and its arguments.
func header(program, version, procedure uint32, args ...uint32) []byte {
	return testkit.Words(append([]uint32{1, 0, 2, program, version, procedure, 0, 0, 0, 0}, args...)...)
}

// TestReadRecord: no length that go-nfs would allocate by is greater than the record it is in. A Call that go-nfs
// answers wrongly, or not, has the Reply that a server without RPCSEC_GSS gives.
func TestReadRecord(t *testing.T) {
	accepted := func(ws ...uint32) []byte { return testkit.Words(append([]uint32{1, 1, 0, 0, 0}, ws...)...) }
	denied := func(ws ...uint32) []byte { return testkit.Words(append([]uint32{1, 1, 1}, ws...)...) }
	flavored := func(flavor uint32) []byte {
		m := header(100003, 3, 0)
		m[27] = byte(flavor)
		return m
	}
	garbage := accepted(4)
	for _, tt := range []struct {
		name    string
		m       []byte
		refusal []byte // nil for none
	}{
		{"NULL", header(100003, 3, 0), nil},
		{"GETATTR", header(100003, 3, 1, 4, 9), nil},
		{"COMMIT", header(100003, 3, 21, 4, 9), nil},
		{"EXPORT", header(mountProgram, 3, mountExport), nil},
		{"NULL with AUTH_SYS", flavored(1), nil},
		{"a handle of 2 GiB", header(100003, 3, 1, 0x7fffffff, 9), garbage},
		{"a handle of 4 GiB", header(100003, 3, 1, 0xffffffff, 9), garbage},
		{"a name of 2 GiB", header(100003, 3, 3, 4, 9, 0x7fffffff), garbage},
		{"data of 2 GiB", header(100003, 3, 7, 4, 9, 0, 0, 4, 0, 0x7fffffff), garbage},
		{"a link's target of 2 GiB", header(100003, 3, 10, 4, 9, 4, 9, 0, 0, 0, 0, 0, 0, 0x7fffffff), garbage},
		{"a MOUNT path of 2 GiB", header(mountProgram, 3, 1, 0x7fffffff), garbage},
		{"READ without a count", header(100003, 3, 6, 4, 9, 0, 0), garbage},
		{"a header of 20 octets", header(100003, 3, 0)[:20], garbage},
		{"a credential of 2 GiB", testkit.Words(1, 0, 2, 100003, 3, 0, 1, 0x7fffffff, 0, 0), denied(1, 1)},
		{"a verifier of 2 GiB", testkit.Words(1, 0, 2, 100003, 3, 0, 0, 0, 0, 0x7fffffff), denied(1, 3)},
		{"RPC version 3", testkit.Words(1, 0, 3, 100003, 3, 0, 0, 0, 0, 0), denied(0, 2, 2)},
		{"NULL with RPCSEC_GSS", flavored(6), denied(1, 1)},
		{"NULL with AUTH_TLS", flavored(7), denied(1, 1)},
		{"procedure 22 of NFSv3", header(100003, 3, 22), accepted(3)},
		{"procedure 2^32-1 of NFSv3", header(100003, 3, 0xffffffff), accepted(3)},
		{"procedure 6 of MOUNT", header(mountProgram, 3, 6), accepted(3)},
		{"NFSv4", header(100003, 4, 1), accepted(2, 3, 3)},
		{"NFSv2", header(100003, 2, 22), accepted(2, 3, 3)},
		{"MOUNT version 1", header(mountProgram, 1, 1), accepted(2, 3, 3)},
		{"NLM", header(100021, 4, 0), accepted(1)},
	} {
		record := testkit.Record(tt.m)
		var b bytes.Buffer
		refusal, err := readRecord(bytes.NewReader(record), &b)
		if err != nil || !bytes.Equal(refusal, tt.refusal) || !bytes.Equal(b.Bytes(), record) {
			t.Errorf("%s: %x, %v; want %x", tt.name, refusal, err, tt.refusal)
		}
	}
	for name, record := range map[string][]byte{
		"a record of 2 GiB": testkit.Words(0xffffffff),
		"a Reply":           testkit.Record(testkit.Words(1, 1, 0, 0, 0, 0)),
		"an XID":            testkit.Record(testkit.Words(1)),
	} {
		if refusal, err := readRecord(bytes.NewReader(record), new(bytes.Buffer)); !errors.Is(err, errRecord) {
			t.Errorf("%s: %x, %v; want an error", name, refusal, err)
		}
	}
	for _, tt := range []struct {
		name string
		m    []byte
		want uint32 // the last count
	}{
		{"READ", header(100003, 3, 6, 4, 9, 0, 0, 0xffffffff), maxRead},
		{"READDIR", header(100003, 3, 16, 4, 9, 0, 0, 0, 0, 0xffffffff), maxRead},
		{"READDIRPLUS", header(100003, 3, 17, 4, 9, 0, 0, 0, 0, 512, 0xffffffff), maxRead},
		{"READDIR with room for an entry", header(100003, 3, 16, 4, 9, 0, 0, 0, 0, 512), minReadDir},
		{"READDIR without", header(100003, 3, 16, 4, 9, 0, 0, 0, 0, oneEntry-1), oneEntry - 1},
	} {
		var b bytes.Buffer
		if refusal, err := readRecord(bytes.NewReader(testkit.Record(tt.m)), &b); err != nil || refusal != nil {
			t.Fatal(tt.name, refusal, err)
		}
		if got, want := b.Bytes()[b.Len()-4:], testkit.Words(tt.want); !bytes.Equal(got, want) {
			t.Errorf("%s has the count %x, want %x", tt.name, got, want)
		}
	}
}
