package explain

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
)

// vectorCall returns the Call of a vector.
func vectorCall(t testing.TB, id string) []byte {
	t.Helper()
	for _, v := range vectors(t).Vectors {
		if v.ID == id {
			b, err := hex.DecodeString(v.Call)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Fatalf("no vector %s", id)
	return nil
}

// callIn explains the input with a pool.mode and returns the Call of message number n. It checks that
// the text has what the JSON has.
func callIn(t testing.TB, mode string, input []byte, n int) *callPart {
	t.Helper()
	o := jsonOptions
	o.Mode = mode
	out, err := run(input, o)
	if err != nil {
		t.Fatal(err)
	}
	var m message
	if err := json.Unmarshal([]byte(strings.Split(out, "\n")[n]), &m); err != nil || m.Call == nil {
		t.Fatalf("%v: %s", err, out)
	}
	o.JSON = false
	text, err := run(input, o)
	if c := m.Call.Choice; err != nil || c != nil && !strings.Contains(text, " "+c.Takes+"\n                "+c.Why[0]+"\n") {
		t.Errorf("%v, the text has no %+v:\n%s", err, c, text)
	}
	return m.Call
}

// TestChoice checks which connection each Call takes in each pool.mode, and that the reasons name what
// decides.
func TestChoice(t *testing.T) {
	const session = "d0d1d2d3d4d5d6d7d8d9dadbdcdddedf"
	const bind = "00000001 00000000 00000002 000186a3 00000004 00000001 00000000 00000000 00000000 00000000 " +
		"00000000 00000001 00000001 00000029 d0d1d2d3 d4d5d6d7 d8d9dadb dcdddedf 00000003 00000000"
	const destroy = "00000001 00000000 00000002 000186a3 00000004 00000001 00000000 00000000 00000000 00000000 " +
		"00000000 00000001 00000001 0000002c d0d1d2d3 d4d5d6d7 d8d9dadb dcdddedf"
	for _, tt := range []struct {
		vector  string // or a Call in hex
		kinds   [4]string
		why     string
		session string
	}{
		{"01-nfs3-getattr", [4]string{choiceAny, choiceAny, choiceAny, choicePinned}, "not NFSv4.1", ""},
		{"09-nfs3-rename", [4]string{choiceAny, choiceAny, choiceAny, choicePinned}, "towards TCP: the one of its client's address", ""},
		{"20-nfs40-create-symlink", [4]string{choiceAny, choiceAny, choiceAny, choicePinned}, "towards TCP", ""},
		{"16-nfs41-seq-putfh-read", [4]string{choiceStays, choiceAny, choiceStays, choicePinned}, "SEQUENCE: the server binds session " + session, session},
		{"28-nfs42-unknown-op", [4]string{choiceStays, choiceAny, choiceStays, choicePinned}, "SEQUENCE", session},
		{"23-nfs41-create-session", [4]string{choiceStays, choiceAny, choiceStays, choicePinned}, "callbacks for program 0x40000000", ""},
		{"24-nfs41-exchange-id", [4]string{choiceStays, choiceAny, choiceStays, choicePinned}, "EXCHANGE_ID: makes a client ID", ""},
		{bind, [4]string{choiceStays, choiceAny, choiceStays, choicePinned}, "BIND_CONN_TO_SESSION: binds another connection", ""},
		{destroy, [4]string{choiceStays, choiceAny, choiceStays, choicePinned}, "has ended session " + session, ""},
		{"32-gss-krb5-none-read", [4]string{choiceContext, choiceContext, choiceContext, choicePinned}, "Calls of a context stay in order", ""},
		{"36-gss-init", [4]string{choiceAny, choiceAny, choiceAny, choicePinned}, "not NFSv4.1", ""},
		{"46-unknown-program", [4]string{choiceAny, choiceAny, choiceAny, choicePinned}, "towards TCP", ""},
	} {
		in := []byte(tt.vector)
		if !strings.Contains(tt.vector, " ") {
			in = vectorCall(t, tt.vector)
		}
		for i, mode := range []string{modeAuto, modeShared, modeSessions, modePinned} {
			c := callIn(t, mode, in, 1).Choice
			if c == nil || c.Kind != tt.kinds[i] || c.Takes == "" || len(c.Why) == 0 || c.Session != tt.session && mode == modeAuto {
				t.Errorf("%s, %s: %+v, want %s", tt.vector, mode, c, tt.kinds[i])
				continue
			}
			if why := strings.Join(c.Why, "; "); mode == modeAuto && !strings.Contains(why, tt.why) || !strings.Contains(why, "pool.mode "+mode) {
				t.Errorf("%s, %s: %s, want %s", tt.vector, mode, why, tt.why)
			}
		}
	}
	if c := callIn(t, "", vectorCall(t, "45-ccp-conf"), 1); c.Choice != nil {
		t.Errorf("a Call that the bridge answers takes %+v", c.Choice)
	}
	// NFSv4 under privacy may be NFSv4.1.
	m := vectorCall(t, "35-gss-krb5p-read")
	binary.BigEndian.PutUint32(m[16:], 4)
	binary.BigEndian.PutUint32(m[20:], 1)
	if c := callIn(t, modeAuto, m, 1).Choice; c.Kind != choiceStays || !strings.Contains(c.Why[0], "encrypted") {
		t.Errorf("under privacy: %+v", c)
	}
}

// TestReverseChoice explains a capture of a client that creates a session and is called back.
func TestReverseChoice(t *testing.T) {
	const recallID = "47-cb41-recall"
	create, createReply := vectorCall(t, "23-nfs41-create-session"), []byte(nil)
	for _, v := range vectors(t).Vectors {
		if v.ID == "23-nfs41-create-session" {
			createReply, _ = hex.DecodeString(v.Replies[0].Reply)
		}
	}
	recall := vectorCall(t, recallID)
	other := bytes.Clone(recall)
	other[bytes.Index(other, []byte{0xd0, 0xd1, 0xd2, 0xd3})] ^= 1
	null := bytes.Clone(recall[:76])
	binary.BigEndian.PutUint32(null[20:], 0)
	v40 := bytes.Clone(recall)
	binary.BigEndian.PutUint32(v40[80:], 0)
	for _, tt := range []struct {
		name, mode string
		m          []byte
		kind, want string
	}{
		{"CB_SEQUENCE", modeAuto, recall, choiceSession, "the Reply #2 did that; while the client is away, the bridge answers NFS4ERR_DELAY"},
		{"CB_SEQUENCE", modeSessions, recall, choiceSession, "the Reply #2 did that"},
		{"another session", modeAuto, other, choiceSession, "by CREATE_SESSION or BIND_CONN_TO_SESSION; while the client"},
		{"CB_NULL", modeAuto, null, choiceProgram, "names no session"},
		{"NFSv4.0", modeAuto, v40, choiceNone, "does not begin with CB_SEQUENCE"},
		{"CB_SEQUENCE", modePinned, recall, choicePinned, "each client connection has one"},
		{"CB_SEQUENCE", modeShared, recall, choiceNone, "does not know which client"},
	} {
		in := captureOf(create, createReply, tt.m)
		c := callIn(t, tt.mode, in, 3) // after the header and two messages
		if !c.Reverse || c.Choice == nil || c.Choice.Kind != tt.kind || !strings.Contains(strings.Join(c.Choice.Why, "; "), tt.want) {
			t.Errorf("%s, %s: reverse %v, %+v, want %s: %s", tt.name, tt.mode, c.Reverse, c.Choice, tt.kind, tt.want)
		}
	}
}

// captureOf returns a capture of a TCP connection: the first message is the client's, and all others are
// the server's.
func captureOf(messages ...[]byte) []byte {
	le := binary.LittleEndian
	var b []byte
	for _, v := range []uint32{0xa1b2c3d4, 2 | 4<<16, 0, 0, 1 << 16, 101} { // raw IP
		b = le.AppendUint32(b, v)
	}
	var sent [2]uint32
	for i, m := range messages {
		from := min(i, 1)
		payload := append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(m))), m...)
		ports := [2]uint16{700, 2049}
		p := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, byte(1 + from), 10, 0, 0, byte(2 - from)}
		binary.BigEndian.PutUint16(p[2:], uint16(40+len(payload)))
		p = binary.BigEndian.AppendUint16(p, ports[from])
		p = binary.BigEndian.AppendUint16(p, ports[1-from])
		p = binary.BigEndian.AppendUint32(p, 1+sent[from])
		p = binary.BigEndian.AppendUint32(p, 1+sent[1-from])
		p = append(p, 0x50, 0x18, 255, 255, 0, 0, 0, 0)
		p = append(p, payload...)
		sent[from] += uint32(len(payload))
		for _, v := range []uint32{uint32(i), 0, uint32(len(p)), uint32(len(p))} {
			b = le.AppendUint32(b, v)
		}
		b = append(b, p...)
	}
	return b
}
