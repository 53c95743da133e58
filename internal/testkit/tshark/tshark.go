// Package tshark decodes captures with the tshark that is installed.
package tshark

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// Lines returns the lines that tshark prints for a capture.
func Lines(t *testing.T, file string, args ...string) []string {
	t.Helper()
	cmd := exec.Command("tshark", append([]string{"-n", "-r", file}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // no preferences
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark %q: %v: %s", args, err, &errOut)
	}
	if len(out) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// A Packet is a packet of a capture as tshark decodes it.
type Packet struct {
	Leg, Stream, From, To string
	XID, Kind             string // of RPC; Kind is 0 for a Call
	Procedure, Data       string // of NFSv3
	Operations, Callbacks string // of NFSv4
	Comment               string
	Cut                   bool
}

// Decode has tshark decode a capture. It checks that tshark has nothing to complain about, and that each
// Call has one Reply. It returns the packets and the number of Calls.
func Decode(t *testing.T, file string) (all []Packet, calls int) {
	t.Helper()
	fields := []string{
		"frame.interface_id", "tcp.stream", "tcp.srcport", "tcp.dstport", "rpc.xid", "rpc.msgtyp", "nfs.procedure_v3", "nfs.data",
		"nfs.opcode", "nfs.cb.operation", "frame.comment", "frame.cap_len", "frame.len",
		"_ws.malformed", "tcp.analysis.flags", "_ws.expert.severity", "_ws.expert.message", "tcp.len", "tcp.flags.push",
		"tcp.analysis.reused_ports",
	}
	args := []string{"-T", "fields", "-E", "occurrence=a", "-E", "aggregator=;"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	sent, answered := map[string]int{}, map[string]int{}
	for _, l := range Lines(t, file, args...) {
		v := strings.Split(l, "\t")
		if len(v) != len(fields) {
			t.Fatalf("tshark says %.200q", l)
		}
		d := Packet{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11] != v[12]}
		all = append(all, d)
		const warning = 0x600000
		for _, s := range strings.Split(v[15], ";") {
			// What tshark thinks of the stateid in the Reply to CLOSE is the server's affair.
			if n, _ := strconv.Atoi(s); n >= warning && !strings.Contains(v[16], "State ID deprecated in CLOSE") {
				v[13] = "expert"
			}
		}
		if v[19] != "" {
			v[14] = "" // A client may come again from the port it had: a chance of libnfs, a habit of Linux.
		}
		if v[13]+v[14] != "" {
			t.Errorf("tshark complains about packet %d: %.300q", len(all), v[13:])
		}
		switch {
		case d.Kind == "0":
			calls++
			sent[d.Stream+" "+d.XID+" "+d.From]++
		case d.Kind == "1":
			answered[d.Stream+" "+d.XID+" "+d.To]++
		case v[17] != "0" && v[18] != "0":
			t.Errorf("packet %d ends a message that is not decoded: %.300q", len(all), v[:6])
		}
	}
	for k, n := range sent {
		if answered[k] != n {
			t.Errorf("%d Calls and %d Replies on stream, XID and port %s", n, answered[k], k)
		}
	}
	if len(sent) != len(answered) {
		t.Errorf("%d Calls, %d Replies", len(sent), len(answered))
	}
	return all, calls
}
