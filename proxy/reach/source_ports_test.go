package reach

import (
	"errors"
	"slices"
	"testing"
)

// TestPortOrder: each seat tries every port; where the shared ones begin is theirs alone, and
// where one of them goes next is none of theirs.
func TestPortOrder(t *testing.T) {
	for _, size := range []uint64{1, 2, 3, 7, 20, 359} {
		for _, seats := range []uint64{1, 2, 3, 7, 20} {
			shared := min(seats, size)
			first := make(map[uint64]uint64)
			for i := range seats + 5 {
				r := portOrder{base: 1 << 31, size: size, shared: shared, own: i >= seats, number: i}
				if r.own {
					r.number = i * 0x9e3779b9
				}
				all := make(map[uint64]bool)
				for n := range 2 * size {
					at := r.port(n)
					if at >= size {
						t.Fatalf("%+v: try %d is %d, beyond the range", r, n, at)
					}
					all[at] = true
				}
				if len(all) != int(size) {
					t.Errorf("%+v: %d of %d ports are tried", r, len(all), size)
				}
				at := r.port(0)
				if r.own {
					if who, ok := first[at]; ok && size > shared {
						t.Errorf("%+v begins where seat %d does", r, who)
					}
					continue
				}
				if who, ok := first[at]; ok && i < shared {
					t.Errorf("seats %d and %d of %d begin at one of %d ports", who, i, seats, size)
				}
				first[at] = i
			}
			for i := range shared {
				r := portOrder{base: 1 << 31, size: size, shared: shared, number: i}
				if who, ok := first[r.port(1)]; ok && i+shared < size {
					t.Errorf("seat %d of %d goes on where seat %d begins", i, seats, who)
				}
			}
		}
	}
}

func TestKernelPorts(t *testing.T) {
	for _, tt := range []struct {
		name, ports, reserved string
		low, high             uint16
		not                   []portSpan
	}{
		{"as shipped", "32768\t60999\n", "\n", 32768, 60999, nil},
		{"some reserved", "32768\t60999\n", "8080,33000-33010,60999\n", 32768, 60999, []portSpan{{8080, 8080}, {33000, 33010}, {60999, 60999}}},
		{"no kernel of this sort", "", "", 0, 0, nil},
		{"nonsense", "a b", "", 0, 0, nil},
		{"turned round", "9 8", "", 0, 0, nil},
		{"too large", "1 65536", "", 0, 0, nil},
	} {
		low, high, not := kernelPorts(func(name string) ([]byte, error) {
			switch {
			case tt.ports == "":
				return nil, errors.New("no such file")
			case name == "/proc/sys/net/ipv4/ip_local_port_range":
				return []byte(tt.ports), nil
			}
			return []byte(tt.reserved), nil
		})
		if low != tt.low || high != tt.high || !slices.Equal(not, tt.not) {
			t.Errorf("%s: %d to %d but %v, want %d to %d but %v", tt.name, low, high, not, tt.low, tt.high, tt.not)
		}
	}
}

// TestTakeKept: ports that the kernel keeps for others, and those of other seats, are not
// taken, and the kernel chooses before all are tried.
func TestTakeKept(t *testing.T) {
	o := &Ports{Source: Source{Low: 100, High: 109}, not: []portSpan{{102, 103}, {105, 108}}, taken: make(map[uint16]struct{})}
	r := portOrder{size: 10, shared: 1}
	var got []uint16
	for n := uint64(0); ; {
		port, ok := o.take(&r, &n)
		if !ok {
			break
		}
		got = append(got, port)
	}
	if want := []uint16{100, 101, 104, 109}; !slices.Equal(got, want) {
		t.Errorf("ports %d, want %d", got, want)
	}
	o = &Ports{Source: Source{Low: 1000, High: 2000}, any: true, taken: make(map[uint16]struct{})}
	r, n, tries := portOrder{size: 1001, shared: 1}, uint64(0), 0
	for ok := true; ok; tries++ {
		_, ok = o.take(&r, &n)
	}
	if tries != anyTries+1 {
		t.Errorf("the kernel chooses after %d tries, want %d", tries-1, anyTries)
	}
}

// TestPortsStay: the ports are those of the first release that chose them, so that
// clients keep theirs over an upgrade.
func TestPortsStay(t *testing.T) {
	o := NewPorts("storage", Source{Low: 665, High: 1023}, nil, nil)
	r := portOrder{base: o.base, size: 359, shared: 4, number: 2}
	if got := 665 + r.port(0); got != portOfStorage {
		t.Errorf("port %d, was %d", got, portOfStorage)
	}
}

const portOfStorage = 997
