package reach

import (
	"testing"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool/slowstart"
)

// TestProgram: NULL Calls are for the program of which the upstream has answered a Call first, and for NFS before that.
func TestProgram(t *testing.T) {
	log := zerolog.Nop()
	w := NewWatch(metrics.New(), "storage", &log, func() uint32 { return 1 }, slowstart.New(1, 1))
	if program, version := w.Program(); program != oncrpc.ProgramNFS || version != 3 {
		t.Errorf("%d version %d before any Call", program, version)
	}
	if _, _, ok := w.spokenTo(); ok {
		t.Error("the upstream has answered a Call of nobody")
	}
	w.Spoke(100005, 1)
	w.Spoke(100021, 4)
	if program, version := w.Program(); program != 100005 || version != 1 {
		t.Errorf("%d version %d, want the first that was answered", program, version)
	}
}
