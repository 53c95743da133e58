package configs

import "testing"

func TestSize(t *testing.T) {
	for _, tc := range []struct {
		in, out string
		n       Size
	}{
		{"1", "1B", 1},
		{"4096", "4KiB", 4096},
		{"64KiB", "64KiB", 65536},
		{" 3 MiB ", "3MiB", 3 << 20},
		{"2GiB", "2GiB", 2 << 30},
		{"1TiB", "1024GiB", 1 << 40},
		{"1kB", "1000B", 1000},
		{"1GB", "1000000000B", 1e9},
		{"1025B", "1025B", 1025},
	} {
		n, err := ParseSize(tc.in)
		if err != nil || n != tc.n || n.String() != tc.out {
			t.Errorf("ParseSize(%q) = %d %s, %v; want %d %s", tc.in, n, n, err, tc.n, tc.out)
		}
	}
}
