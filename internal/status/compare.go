package status

import "iter"

// A reader that wants rates compares two documents. Listeners and upstreams are the same in both if they
// have the same name, operations if they have the same key.

// Key tells the listeners of a document apart.
func (l *Listener) Key() string { return l.Name }

// Key tells the upstreams of a document apart.
func (u *Upstream) Key() string { return u.Name }

// An OperationKey tells the operations of a document apart.
type OperationKey struct {
	Listener, Upstream, Program, Operation string
	Version                                uint32
}

// Key tells the operations of a document apart.
func (o *Operation) Key() OperationKey {
	return OperationKey{o.Listener, o.Upstream, o.Program, o.Operation, o.Version}
}

// ByKey returns the elements of list by their keys.
func ByKey[T any, K comparable](list []T, key func(*T) K) map[K]*T {
	m := make(map[K]*T, len(list))
	for i := range list {
		m[key(&list[i])] = &list[i]
	}
	return m
}

// Beside returns each element of now, and with it the element of before that has the same key, or one that is
// zero if there is none.
func Beside[T any, K comparable](now, before []T, key func(*T) K) iter.Seq2[*T, *T] {
	return func(yield func(*T, *T) bool) {
		old := ByKey(before, key)
		for i := range now {
			was := old[key(&now[i])]
			if was == nil {
				was = new(T)
			}
			if !yield(&now[i], was) {
				return
			}
		}
	}
}
