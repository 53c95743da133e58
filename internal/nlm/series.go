package nlm

import (
	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/metrics"
)

// A refusal is why a connection or a message was refused.
type refusal uint8

const (
	refusedMalformed refusal = iota
	refusedAuth
	refusedProgram
	refusedVersion
	refusedProcedure
	refusedArguments
	refusedLong
	refusedDenied
	refusedConnections
	refusedGroup
	refusedRate
	refusedBusy
	refusedTable
	refusedStranger
	refusals // how many there are
)

// refusalNames and the names below are those of the metrics, whose table says what they mean.
var refusalNames = [refusals]string{
	"malformed", "auth", "program", "version", "procedure", "arguments", "long", "denied", "connections", "group", "rate", "busy", "table", "stranger",
}

// A granting is what became of a GRANTED.
type granting uint8

const (
	grantedTaken granting = iota
	grantedRefused
	grantedUnknown
	grantedAgain
	grantedUnanswered
	grantings // how many there are
)

var grantingNames = [grantings]string{"taken", "refused", "unknown", "repeated", "unanswered"}

// A notice is what became of a NOTIFY.
type notice uint8

const (
	noticeServer notice = iota
	noticeClient
	noticeRepeated
	noticeStranger
	noticeTold
	noticeUntold
	notices // how many there are
)

var noticeNames = [notices]string{"server", "client", "repeated", "stranger", "told", "untold"}

// procedureNames are the procedures about locks.
var procedureNames = map[uint32]string{
	procTest: "test", procLock: "lock", procCancel: "cancel", procUnlock: "unlock", procShare: "share", procUnshare: "unshare", procNMLock: "nm_lock",
}

// resultNames are the names of nlm_stats, and of what else can become of a Call.
var resultNames = [...]string{
	"granted", "denied", "no_locks", "blocked", "grace_period", "deadlock", "read_only", "stale_handle", "too_large", "failed", "other", "refused",
}

const (
	resultOther   = len(resultNames) - 2
	resultRefused = len(resultNames) - 1
)

// series are the Server's metrics.
type series struct {
	calls   map[uint32]*[len(resultNames)]*metrics.Counter // by procedure; constant
	grants  [grantings]*metrics.Counter
	notices [notices]*metrics.Counter
	refused [refusals]*metrics.Counter
}

func (x *series) resolve(r *metrics.Registry, t *table) {
	x.calls = make(map[uint32]*[len(resultNames)]*metrics.Counter)
	for procedure, name := range procedureNames {
		x.calls[procedure] = new([len(resultNames)]*metrics.Counter)
		for i, result := range resultNames {
			x.calls[procedure][i] = r.Counter(metrics.NLMCalls, name, result)
		}
	}
	for i, name := range grantingNames {
		x.grants[i] = r.Counter(metrics.NLMGrants, name)
	}
	for i, name := range noticeNames {
		x.notices[i] = r.Counter(metrics.NLMNotices, name)
	}
	for i, name := range refusalNames {
		x.refused[i] = r.Counter(metrics.NLMRefusedMessages, name)
	}
	r.GaugeFunc(metrics.NLMHeldLocks, func() float64 { return float64(t.counts().held) })
	r.GaugeFunc(metrics.NLMWaitingLocks, func() float64 { return float64(t.counts().waiting) })
	r.GaugeFunc(metrics.NLMClients, func() float64 { return float64(t.counts().owners) })
}

func (x *series) refuse(why refusal) { x.refused[why].Inc() }

// called counts a Call about locks and its result.
func (x *series) called(procedure, stat uint32, refused bool) {
	i := min(int(stat), resultOther)
	if refused {
		i = resultRefused
	}
	x.calls[procedure][i].Inc()
}

// unheard logs that a client has not been told something.
func (s *Server) unheard(p place, what string, err error) {
	if s.ctx.Err() != nil {
		return // the Server ends
	}
	s.unheards.Line(&s.log, zerolog.WarnLevel, "nlm_client_unreachable").Stringer("client", p.client).Str("about", what).Err(err).
		Msg("nlm: a client's lock manager or status monitor does not answer")
}
