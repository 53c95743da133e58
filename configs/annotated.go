package configs

import (
	_ "embed" // for Annotated
	"strings"
)

// Annotated is the file that shows every setting, with comments.
//
//go:embed rdmabridge.yaml
var Annotated []byte

// commentsByLine returns the comment of each line that has a setting, with the comment
// lines that follow it.
func commentsByLine(data []byte, src *source) map[int]string {
	begins := make(map[int]bool)
	for _, p := range src.positions {
		begins[p.line] = true
	}
	comments := make(map[int]string)
	setting := 0
	for i, line := range strings.Split(string(data), "\n") {
		before, comment, _ := strings.Cut(line, "#")
		if begins[i+1] {
			setting = i + 1
		} else if strings.TrimSpace(before) != "" || comment == "" || before == "" {
			setting = 0
		}
		if setting > 0 {
			comments[setting] = strings.TrimSpace(comments[setting] + " " + strings.TrimSpace(comment))
		}
	}
	return comments
}

// annotations returns the comment of each setting in Annotated, by its path without indices.
func annotations() map[string]string {
	r := &report{source: newSource()}
	d, ok := parseDocument("", Annotated, r)
	if !ok || r.source.read(d, false, r).unusable {
		panic("BUG: the annotated file is wrong: " + r.err().Error())
	}
	comments := commentsByLine(Annotated, r.source)
	all, lines := make(map[string]string), make(map[string]int)
	for path, at := range r.source.positions {
		p := index.ReplaceAllString(path, "")
		c := comments[at.line]
		if strings.HasSuffix(path, "]") || c == "" {
			continue
		}
		if first, ok := lines[p]; !ok || at.line < first { // the first listener or upstream has it
			all[p], lines[p] = c, at.line
		}
	}
	return all
}
