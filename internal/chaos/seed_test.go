package chaos

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// A seed is where all chance of a run comes from.
type seed uint64

// seedOf takes CHAOS_SEED, or the clock.
func seedOf(t testing.TB) seed {
	if s := os.Getenv("CHAOS_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("CHAOS_SEED: %v", err)
		}
		return seed(n)
	}
	return seed(time.Now().UnixNano() & 0xffffffff)
}

func (s seed) String() string { return fmt.Sprintf("CHAOS_SEED=%d", uint64(s)) }

// dice are the chance of the actor with that name and number.
func (s seed) dice(name string, n int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", name, n)
	return rand.New(rand.NewPCG(uint64(s), h.Sum64()))
}

// between is a time from a to b.
func between(r *rand.Rand, a, b time.Duration) time.Duration {
	return a + time.Duration(r.Int64N(int64(b-a)+1))
}
