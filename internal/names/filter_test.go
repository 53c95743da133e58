package names

import (
	"strings"
	"testing"
)

func TestFilter(t *testing.T) {
	at := func(path, export string) *Place { return &Place{Handle: []byte("h"), Path: path, Export: export} }
	for _, tc := range []struct {
		exports, paths string // divided by spaces
		place          *Place
		want           Verdict
	}{
		{"", "", &Place{}, In},
		{"/home", "", &Place{}, Out},
		{"/home", "", &Place{opaque: true}, Unknown},
		{"/home", "", at("", "/home"), In},
		{"/home /x", "", at("", "/x"), In},
		{"/home", "", at("", "/homes"), Out},
		{"/home", "", at("", "unknown"), Unknown},
		{"/home", "", at("", "fsid 0x11 (/home, /x)"), Unknown},
		{"/home", "/home/a", at("", "/home"), Unknown},
		{"/home", "/home/a", at("/home/a", "/x"), Out},
		{"", "/home/a", at("/home/a", ""), In},
		{"", "/home/a/", at("/home/a/b/c", ""), In},
		{"", "/home/a", at("/home/ab", ""), Out},
		{"", "/home/a", at("/home", ""), Out},
		{"", "/home/a", at(".../a", ""), Unknown},
		{"", ".../a", at(".../a/b", ""), In},
		{"", "/", at("/", ""), In},
		{"", "/", at("/a", ""), In},
		{"", "/home/*/build", at("/home/a/build/x.o", ""), In},
		{"", "/home/*/build", at("/home/a/b/build", ""), Out},
		{"", "/home/**/build", at("/home/a/b/build", ""), In},
		{"", "/home/**/build", at("/home/build", ""), In},
		{"", "**/*.[ch]", at("/a/b/x.c", ""), In},
		{"", "**/*.[ch]", at(".../x.o", ""), Unknown},
		{"", "/**/a/**/b", at("/x/a/y/a/z/b", ""), In},
		{"", "/**/a/**/b", at("/x/a/y/a/z/c", ""), Out},
		{"", "/a/**", at("/a", ""), In},
		{"", "/y /x", at("/x", ""), In},
		{"", strings.Repeat("/**/*", 30) + "/z", at(strings.Repeat("/a", 60), ""), Out},
	} {
		f, err := NewFilter(strings.Fields(tc.exports), strings.Fields(tc.paths))
		if err != nil {
			t.Errorf("%s: %v", tc.paths, err)
		}
		if got := f.Judge(tc.place); got != tc.want {
			t.Errorf("exports %q and paths %q of %+v: %d, want %d", tc.exports, tc.paths, tc.place, got, tc.want)
		}
	}
	for _, p := range []string{"a", "", "/[", `/a\`} {
		if _, err := NewFilter(nil, []string{p}); err == nil {
			t.Errorf("%q is taken for a pattern", p)
		}
	}
}
