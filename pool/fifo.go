package pool

import "time"

// A fifo is a list of Calls that leave it in the order they came.
type fifo struct{ head, tail *Entry }

// push adds e at the end.
func (l *fifo) push(e *Entry) {
	e.next = nil
	if l.tail == nil {
		l.head = e
	} else {
		l.tail.next = e
	}
	l.tail = e
}

// pushFront adds e at the beginning.
func (l *fifo) pushFront(e *Entry) {
	e.next = l.head
	l.head = e
	if l.tail == nil {
		l.tail = e
	}
}

// pop removes and returns the first entry. There is one.
func (l *fifo) pop() *Entry {
	e := l.head
	l.head = e.next
	if l.head == nil {
		l.tail = nil
	}
	e.next = nil
	return e
}

// take removes the first n entries, and returns them as a list. There are so many.
func (l *fifo) take(n int) *Entry {
	if n == 0 {
		return nil
	}
	first := l.head
	last := first
	for range n - 1 {
		last = last.next
	}
	l.head, last.next = last.next, nil
	if l.head == nil {
		l.tail = nil
	}
	return first
}

// expire removes the entries that were queued before t, and returns them as a list.
func (l *fifo) expire(t time.Time) (old *Entry) {
	head := &l.head
	l.tail = nil
	for e := l.head; e != nil; {
		next := e.next
		if e.queuedAt.Before(t) {
			*head = next
			e.next = old
			old = e
		} else {
			head = &e.next
			l.tail = e
		}
		e = next
	}
	return old
}

// forget removes the entries of f, and returns them as a list.
func (l *fifo) forget(f *Flow) *Entry {
	var of, others fifo
	for l.head != nil {
		if e := l.pop(); e.Flow == f {
			of.push(e)
		} else {
			others.push(e)
		}
	}
	*l = others
	return of.head
}

// join appends list b to list a. Lists are linked by Entry.next.
func join(a, b *Entry) *Entry {
	if a == nil {
		return b
	}
	e := a
	for e.next != nil {
		e = e.next
	}
	e.next = b
	return a
}

// length counts the entries of a list.
func length(e *Entry) (n int) {
	for ; e != nil; e = e.next {
		n++
	}
	return n
}
