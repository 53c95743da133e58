package sizing

import (
	"slices"
	"time"
)

func (s *simulation) result() Result {
	r := &s.res
	fail, end := int(s.f.FailAt/time.Second), int(s.f.Run/time.Second)
	r.Before = rate(s.seconds, fail-2, fail)
	r.After = rate(s.seconds, end-2, end)
	r.HealthyUsual = rate(s.healthy, fail-2, fail)
	r.Healthy = rate(s.healthy, fail+15, fail+20)
	r.Least = r.Before
	for i := fail; i < end; i++ {
		r.Least = min(r.Least, float64(s.seconds[i]))
	}
	slices.Sort(s.waits)
	if n := len(s.waits); n > 0 {
		r.Waits = [4]time.Duration{s.waits[n/2], s.waits[n*99/100], s.waits[n*999/1000], s.waits[n-1]}
	}
	return *r
}

// rate is the mean of some seconds.
func rate(seconds []int, from, to int) float64 {
	from, to = max(0, from), min(to, len(seconds))
	if from >= to {
		return 0
	}
	n := 0
	for _, x := range seconds[from:to] {
		n += x
	}
	return float64(n) / float64(to-from)
}
