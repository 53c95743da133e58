package bench

import (
	"fmt"
	"strconv"
	"strings"
)

// maxWeight bounds the sum of the weights of a mix.
const maxWeight = 1000

// Work describes the Calls of a load: echoes, or a mix of NFS procedures.
type Work struct {
	// Call and Reply are the lengths of the RPC messages of an echo in octets. They are
	// rounded up to multiples of 4, and to MinEchoCall and MinEchoReply.
	Call, Reply int
	// Delay is how long the server waits before it answers an echo, in microseconds, at
	// most 10 s.
	Delay uint32

	// Mix, if not empty, is a program with procedures and their weights, such
	// as "nfs3:read=50,write=30,getattr=20". A weight left out is 1.
	Mix string
	// Size is the data of each READ and WRITE of a mix in octets.
	Size int
}

// String describes w in a few words.
func (w Work) String() string {
	if w.Mix == "" {
		return fmt.Sprintf("call %s reply %s", formatSize(w.Call), formatSize(w.Reply))
	}
	if !strings.Contains(w.Mix, "read") && !strings.Contains(w.Mix, "write") {
		return w.Mix
	}
	return w.Mix + " of " + formatSize(w.Size)
}

// formatSize writes n octets with the largest unit that leaves no fraction.
func formatSize(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + " MiB"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + " KiB"
	}
	return strconv.Itoa(n) + " B"
}

// ops returns the kinds of Calls and a sequence of their indices, which a load repeats.
func (w Work) ops() ([]*op, []uint8, error) {
	if w.Mix == "" {
		o, err := echoOp(w.Call, w.Reply, w.Delay)
		return []*op{o}, []uint8{0}, err
	}
	program, list, ok := strings.Cut(w.Mix, ":")
	if !ok || program != "nfs3" {
		return nil, nil, fmt.Errorf("--mix: %q is not possible here; write nfs3: and a list of NAME=WEIGHT, such as nfs3:read=50,write=50", w.Mix)
	}
	var ops []*op
	var weights []int
	total := 0
	for item := range strings.SplitSeq(list, ",") {
		name, number, given := strings.Cut(item, "=")
		weight := 1
		if given {
			var err error
			if weight, err = strconv.Atoi(number); err != nil || weight < 1 {
				return nil, nil, fmt.Errorf("--mix: %q has the weight %q; write a whole number above 0", w.Mix, number)
			}
		}
		for _, o := range ops {
			if o.name == name {
				return nil, nil, fmt.Errorf("--mix: %q has %s twice; write it once", w.Mix, name)
			}
		}
		if total += weight; total > maxWeight {
			return nil, nil, fmt.Errorf("--mix: the weights of %q add up to more than %d; write smaller ones", w.Mix, maxWeight)
		}
		o, err := nfsOp(name, w.Size)
		if err != nil {
			return nil, nil, err
		}
		ops, weights = append(ops, o), append(weights, weight)
	}
	return ops, interleave(weights, total), nil
}

// interleave returns each index as often as its weight says, spread evenly. In every step
// each index gains its weight, and the index with the most is next and loses the total.
func interleave(weights []int, total int) []uint8 {
	order := make([]uint8, total)
	have := make([]int, len(weights))
	for i := range order {
		most := 0
		for j, w := range weights {
			have[j] += w
			if have[j] > have[most] {
				most = j
			}
		}
		have[most] -= total
		order[i] = uint8(most)
	}
	return order
}
