package credit

import "testing"

// A step is one event at a Requester, and the credits free after it.
type step struct {
	do   string // "take", "refuse", "put", "grant"
	n    uint32
	free int
}

// run executes step i and checks the free credits after it.
func (s step) run(t *testing.T, i int, a *Account) {
	t.Helper()
	switch s.do {
	case "take":
		if !a.Take() {
			t.Fatalf("step %d: no credit", i)
		}
	case "refuse":
		if a.Take() {
			t.Fatalf("step %d: a credit too many", i)
		}
	case "put":
		a.Put()
	case "grant":
		a.Grant(s.n)
	}
	if a.Free() != s.free {
		t.Fatalf("step %d, %s %d: %d free, want %d: %+v", i, s.do, s.n, a.Free(), s.free, *a)
	}
}

func TestAccount(t *testing.T) {
	for _, test := range []struct {
		name      string
		requested int
		steps     []step
	}{
		{"one credit until the first Reply: Section 3.3.3", 32, []step{
			{"take", 0, 0},
			{"refuse", 0, 0},
			{"grant", 8, 7},
			{"put", 0, 8},
		}},
		{"a grant of zero grants one", 32, []step{
			{"take", 0, 0},
			{"grant", 0, 0},
			{"put", 0, 1},
			{"take", 0, 0},
			{"refuse", 0, 0},
		}},
		{"no more than was requested", 4, []step{
			{"take", 0, 0},
			{"grant", 1<<32 - 1, 3},
			{"put", 0, 4},
		}},
		{"a grant below what is outstanding", 32, []step{
			{"take", 0, 0},
			{"grant", 4, 3},
			{"take", 0, 2},
			{"take", 0, 1},
			{"take", 0, 0},
			{"grant", 2, 0},
			{"put", 0, 0},
			{"refuse", 0, 0},
			{"put", 0, 0},
			{"refuse", 0, 0},
			{"put", 0, 1},
			{"take", 0, 0},
			{"grant", 3, 1},
		}},
		{"a grant that rises and falls between two Replies", 16, []step{
			{"grant", 16, 16},
			{"grant", 1, 1},
			{"take", 0, 0},
			{"grant", 16, 15},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := NewAccount(test.requested)
			for i, s := range test.steps {
				s.run(t, i, &a)
			}
		})
	}
}

func TestNewAccount(t *testing.T) {
	for _, test := range []struct {
		requested int
		want      uint32
	}{{0, 1}, {-1, 1}, {1, 1}, {128, 128}, {Max, Max}, {Max + 1, Max}, {1 << 40, Max}} {
		a := NewAccount(test.requested)
		if a.Requested != test.want || a.Granted != 1 || a.Free() != 1 {
			t.Errorf("NewAccount(%d) = %+v", test.requested, a)
		}
	}
}

func TestBugs(t *testing.T) {
	for name, f := range map[string]func(){
		"Put without Take":   func() { a := NewAccount(1); a.Put() },
		"Reply without Call": func() { g := NewGrantor(1, 1); g.Reply() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic", name)
				}
			}()
			f()
		}()
	}
}

func BenchmarkAccount(b *testing.B) {
	a := NewAccount(128)
	b.ReportAllocs()
	for b.Loop() {
		if !a.Take() {
			b.Fatal("no credit")
		}
		a.Grant(64)
		a.Put()
	}
}
