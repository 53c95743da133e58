package sizing

import (
	"math"
	"reflect"
	"testing"
	"time"
)

// thousand is a thousand bridges with a hundred thousand clients: a hundred for each.
func thousand() Fleet {
	return Fleet{
		Seed: 1, Clients: 100_000, Bridges: 1000, Slots: 4, Think: 8 * time.Second, Servers: 10, Threads: 64,
		Service: 2 * time.Millisecond, Credits: 32, Share: true, SlowStart: true, AcceptRate: 6000, Run: 9 * time.Second,
		FailAt: 3 * time.Second, FailFor: 8 * time.Second, Backoff: 5 * time.Second, CallLimit: 60 * time.Second,
	}
}

func simulate(t *testing.T, name string, f Fleet) Result {
	t.Helper()
	began := time.Now()
	r := Simulate(f)
	t.Logf("%s, in %v:\n%+v", name, time.Since(began).Round(10*time.Millisecond), r)
	return r
}

// TestReconnectStorm: a tenth of the bridges ends at once.
func TestReconnectStorm(t *testing.T) {
	f := thousand()
	f.Lost = 100
	r := simulate(t, "a tenth of the bridges lost", f)
	if math.Abs(r.After-r.Before) > 0.05*r.Before {
		t.Errorf("%.0f Calls/s before and %.0f after", r.Before, r.After)
	}
	// Clients try again within 3 to 4 s, and the others have room for them.
	if r.Waits[3] < 3*time.Second || r.Waits[3] > 5*time.Second {
		t.Errorf("the longest wait is %v", r.Waits[3])
	}
}

// TestStarvation: one file system of a storage hangs, and its clients have many Calls. Without shares they hold all
// credits of each bridge. With them the others keep nearly their rate.
func TestStarvation(t *testing.T) {
	f := thousand()
	f.Bridges, f.Clients, f.Servers, f.Slots, f.Think = 100, 10_000, 4, 16, 4*time.Second
	f.Shared, f.Server, f.Credits, f.Run = true, true, 64, 30*time.Second
	with := simulate(t, "shares", f)
	f.Share = false
	without := simulate(t, "no shares", f)
	if with.Healthy < 0.9*with.HealthyUsual {
		t.Errorf("with shares %.0f Calls/s of clients that have nothing to do with it, of %.0f", with.Healthy, with.HealthyUsual)
	}
	if without.Healthy > 0.1*without.HealthyUsual {
		t.Errorf("without shares %.0f Calls/s, of %.0f: this tests nothing", without.Healthy, without.HealthyUsual)
	}
}

// TestServerLost: one storage node is away for eight seconds. Then the Calls that have waited come from all bridges.
func TestServerLost(t *testing.T) {
	f := thousand()
	f.Server, f.Run, f.Think = true, 18*time.Second, 12*time.Second
	with := simulate(t, "slow start", f)
	f.SlowStart = false
	f.Backoff = time.Millisecond
	without := simulate(t, "no slow start and no pause", f)
	for _, r := range []Result{with, without} {
		if math.Abs(r.After-r.Before) > 0.05*r.Before {
			t.Errorf("%.0f Calls/s before and %.0f after", r.Before, r.After)
		}
	}
	if with.MostAtServer >= without.MostAtServer {
		t.Errorf("%d Calls waited at a server with pauses and slow starts, and %d without", with.MostAtServer, without.MostAtServer)
	}
}

// TestSeed: a seed decides everything.
func TestSeed(t *testing.T) {
	f := thousand()
	f.Clients, f.Bridges, f.Lost, f.Server = 2000, 20, 2, true
	r := Simulate(f)
	if again := Simulate(f); !reflect.DeepEqual(r, again) {
		t.Errorf("the same seed has another result:\n%+v\n%+v", r, again)
	}
	f.Seed++
	if other := Simulate(f); reflect.DeepEqual(r, other) {
		t.Error("another seed has the same result")
	}
}

// TestLittle compares a fleet whose credits are too few with what the formulas say of it.
func TestLittle(t *testing.T) {
	f := Fleet{
		Seed: 3, Clients: 400, Bridges: 4, Slots: 4, Think: 10 * time.Millisecond, Servers: 1, Threads: 1000,
		Service: 20 * time.Millisecond, Credits: 50, AcceptRate: 6000, Run: 10 * time.Second, FailAt: 8 * time.Second,
	}
	r := Simulate(f)
	if want := 4 * 50 / 0.020; math.Abs(r.Before-want) > 0.05*want {
		t.Errorf("%.0f Calls/s with 200 credits, want %.0f", r.Before, want)
	}
	f.Credits, f.Threads = 1000, 2000
	f.Think = 30 * time.Millisecond
	r = Simulate(f)
	if want := 1600 / 0.050; math.Abs(r.Before-want) > 0.05*want {
		t.Errorf("%.0f Calls/s of 1600 slots, want %.0f", r.Before, want)
	}
	f.Threads = 100 // fewer than the 1600 slots keep busy
	r = Simulate(f)
	if want := 100 / 0.020; math.Abs(r.Before-want) > 0.05*want {
		t.Errorf("%.0f Calls/s of 100 threads, want %.0f", r.Before, want)
	}
}

// TestRecovery compares how long the simulated clients of lost bridges take with the formula.
func TestRecovery(t *testing.T) {
	f := Fleet{
		Seed: 4, Clients: 100_000, Bridges: 5, Slots: 1, Think: 20 * time.Second, Servers: 1, Threads: 100_000,
		Service: time.Millisecond, Credits: 1000, AcceptRate: acceptRate, Run: 12 * time.Second, FailAt: 2 * time.Second, Lost: 1,
	}
	for _, f.Bridges = range []int{3, 5, 50} {
		got := Simulate(f).Back
		p, err := NewPlan(Demand{Clients: f.Clients, Calls: 5000, Latency: f.Service, Bridges: f.Bridges, Spare: 1, Grant: 64, Largest: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d bridges: the formula says %v, the simulation %v", f.Bridges, p.Back, got)
		if d := math.Abs(p.Back.Seconds()/got.Seconds() - 1); d > 0.2 {
			t.Errorf("%d bridges: the formula says %v, the simulation %v", f.Bridges, p.Back, got)
		}
	}
}
