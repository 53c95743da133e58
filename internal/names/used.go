package names

// A used is an export of a listener that is counted by its path.
type used struct{ listener, export string }

// Count has Options.Used told of the use of these exports from now on, and of no others. When it returns, Used is not
// called for those that are left out.
func (w *Watch) Count(exports []string) {
	w.inside(func() {
		w.counted = make(map[string]bool)
		for _, e := range exports {
			w.counted[e] = true
		}
		clear(w.uses) // Used was told of all but parts of a Call and of an octet
	})
}

// use counts what a Call adds to its export, if that is one of those that are counted.
func (w *Watch) use(x export, t *tally) {
	if len(w.counted) == 0 {
		return
	}
	u := used{x.listener, w.book.exportName(x, func(path string) string { return path })}
	if !w.counted[u.export] {
		return
	}
	sum := w.uses[u]
	if sum == nil {
		sum = new(tally)
		w.uses[u] = sum
	}
	sum.add(t)
}

// tellUses tells Options.Used what was counted. A Call that is looked at may stand for 2.5: the half waits for others.
func (w *Watch) tellUses() {
	for u, t := range w.uses {
		calls, read, written := uint64(t.count), uint64(t.read), uint64(t.written)
		if calls|read|written == 0 {
			continue
		}
		w.opts.Used(u.listener, u.export, calls, read, written)
		t.count, t.read, t.written = t.count-float64(calls), t.read-float64(read), t.written-float64(written)
	}
}
