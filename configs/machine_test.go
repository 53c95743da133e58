package configs

import (
	"math"
	"testing"
)

// onLargeMachine sets the default of memory.budget to that of a machine with plenty of memory.
func onLargeMachine(t *testing.T) {
	t.Helper()
	was := defaultBudget
	defaultBudget = mostBudget
	t.Cleanup(func() { defaultBudget = was })
}

func TestBudgetFitsTheMachine(t *testing.T) {
	for _, x := range []struct{ memory, want Size }{
		{math.MaxInt64, 1 * GiB},
		{24 * GiB, 1 * GiB},
		{1 * GiB, 496 * MiB},
		{256 * MiB, 112 * MiB},
		{128 * MiB, 48 * MiB},
		{16 * MiB, 1 * MiB}, // Validate says what it would need
	} {
		if got := budgetFor(x.memory); got != x.want {
			t.Errorf("%s of memory: a budget of %s, want %s", x.memory, got, x.want)
		}
	}
}

func TestMachineMemory(t *testing.T) {
	if m := MachineMemory(); m < 16*MiB || m > 1<<50 {
		t.Errorf("this machine has %s of memory", m)
	}
}
