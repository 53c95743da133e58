package tap

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb/nfs"
)

// A fate is what became of a Call.
type fate struct {
	over   bool
	failed bool     // no Reply, or one that is a failure: status.Failure
	names  []string // what statuses of filters it matches, in small letters: ok, stale, 70 and so on
	text   string   // for people
	took   time.Duration
}

// The statuses of filters that stand for several.
const (
	statusOK      = "ok"
	statusError   = "error"
	statusNoReply = "no_reply"
)

// resultAbsorbed is the result of a Call that repeats another one.
const resultAbsorbed = "absorbed"

// acceptNames are the names of accept_stat behind SUCCESS.
var acceptNames = []string{"prog_unavail", "prog_mismatch", "proc_unavail", "garbage_args", "system_err"}

// finish notes that the Call is over, as e says.
func (f *fate) finish(e *event, c *followed) {
	if e.status != "" {
		f.failed = e.failed
		f.names = append(f.names, e.status)
	}
	if f.over {
		return
	}
	// The Reply did not come, or is not in the capture.
	f.over, f.text, f.took = true, e.text, e.at.Sub(c.read)
	f.names = append(f.names, e.text)
	if e.status == "" && e.text != resultAbsorbed {
		f.failed = true
		f.names = append(f.names, statusNoReply)
	}
}

// judge reads the status of the Reply that begins with m.
func (f *fate) judge(m []byte, c *followed) {
	f.names = f.names[:0]
	var r oncrpc.Reply
	if oncrpc.ParseReply(m, &r) != nil {
		f.text = "malformed"
		f.names = append(f.names, f.text)
		return
	}
	switch {
	case r.Denied && r.RejectStat == oncrpc.RPCMismatch:
		f.text = "rpc_mismatch"
	case r.Denied:
		f.text = "auth_error"
	case !r.Succeeded():
		f.text = "accept_stat " + strconv.Itoa(int(r.AcceptStat))
		if i := r.AcceptStat - 1; i < uint32(len(acceptNames)) {
			f.text = acceptNames[i]
		}
	default:
		f.results(m[r.Results:], c)
		return
	}
	f.names = append(f.names, f.text)
}

// results reads the status that the results of NFS, MOUNT and NFSACL begin with.
func (f *fate) results(m []byte, c *followed) {
	f.text = statusOK
	defer func() { f.names = append(f.names, f.text) }()
	switch c.program {
	case oncrpc.ProgramNFS, oncrpc.ProgramNFSACL:
	case oncrpc.ProgramMount:
		if c.procedure != 1 {
			return // of MOUNT, only MNT has a status
		}
	default:
		return
	}
	switch c.protection {
	case oncrpc.ProtectNone:
	case oncrpc.ProtectIntegrity:
		m = m[min(8, len(m)):] // the length of the body, and the sequence number
	default:
		return
	}
	if c.procedure == 0 || len(m) < 4 {
		return
	}
	v := binary.BigEndian.Uint32(m)
	if v == 0 {
		return
	}
	name := nfs.StatusName(c.version, v)
	_, short, _ := strings.Cut(name, "ERR_")
	if short == "" {
		short = name
	}
	f.text = strings.ToLower(short)
	f.names = append(f.names, strconv.FormatUint(uint64(v), 10), strings.ToLower(name))
	if v == 13 {
		f.names = append(f.names, "access")
	}
}

// matches reports whether f has one of the statuses.
func (f *fate) matches(statuses []string) bool {
	return slices.ContainsFunc(statuses, func(s string) bool {
		s = strings.ToLower(s)
		return s == statusError && f.failed || slices.Contains(f.names, s)
	})
}

// wanted reports whether f passes the filters that need it.
func (f *fate) wanted(o *Options) bool {
	return (len(o.Statuses) == 0 || f.matches(o.Statuses)) && f.took >= o.Slower
}

// pulls reports whether f is what t waits for.
func (f *fate) pulls(t *Trigger) bool {
	return len(t.Statuses) > 0 && f.matches(t.Statuses) || t.Slower > 0 && f.took >= t.Slower
}
