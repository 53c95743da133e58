package admin

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// TestProblemLog: a problem that lasts is two lines, and one that comes and goes is none.
func TestProblemLog(t *testing.T) {
	var out bytes.Buffer
	log := zerolog.New(&out)
	p := problemLog{log: &log, known: make(map[problemKey]*knownProblem)}
	down := status.Problem{Severity: status.Critical, Code: "upstream_down", Subject: "nfs", Text: "The server is away.", Advice: "Look at it."}
	slow := status.Problem{Severity: status.Warning, Code: "client_slow", Subject: "192.0.2.1:700", Text: "Slow."}
	drain := status.Problem{Severity: status.Notice, Code: "draining", Text: "Draining."}
	now := time.Unix(1000, 0)
	for i := range 24 { // two minutes
		var problems []status.Problem
		if i >= 2 && i < 14 && i != 8 { // for a minute, and once not seen
			problems = append(problems, down)
		}
		if i%2 == 0 {
			problems = append(problems, slow)
		}
		p.update(now, append(problems, drain))
		now = now.Add(judgeEvery)
	}
	want := `{"level":"info","event":"problem_began","problem":"upstream_down","severity":"critical","subject":"nfs","advice":"Look at it.","message":"The server is away."}
{"level":"info","event":"problem_ended","problem":"upstream_down","subject":"nfs","lasted_seconds":55,"message":"a problem is over"}
`
	if out.String() != want {
		t.Errorf("lines:\n%swant:\n%s", &out, want)
	}
	if len(p.known) > 1 {
		t.Errorf("%d problems are remembered", len(p.known))
	}
	for i := range 1000 {
		slow.Subject = strings.Repeat("x", i)
		p.update(now, []status.Problem{slow})
		now = now.Add(judgeEvery)
	}
	if len(p.known) > 3 {
		t.Errorf("%d problems are remembered", len(p.known))
	}
}
