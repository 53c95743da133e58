package configs

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// blank stands for an empty line while a file is formatted: the YAML library keeps comments and no empty lines.
const blank = "#\u00a0empty line\u00a0"

// Format returns a file in its canonical form: two spaces for each level, lists indented, one space before a
// comment, and no more than one empty line at a time. Comments, the order of settings, quotes, anchors and
// variables of the environment stay. Its error is of type Problems if the file has no YAML.
func Format(name string, data []byte) ([]byte, error) {
	r := &report{files: []string{name}}
	d, ok := parseDocument(name, data, r)
	if !ok {
		return nil, r.err()
	}
	if d.root == nil {
		return data, nil // comments alone
	}
	var last error
	for _, text := range [][]byte{markBlanks(data, d.root), data} {
		out, err := reprint(text)
		if err == nil {
			err = sameFile(data, out)
		}
		if err == nil { // the library may print what it reads otherwise
			var again []byte
			if again, err = reprint(out); err == nil {
				err = sameFile(out, again)
			}
		}
		if err == nil {
			return out, nil
		}
		last = err
	}
	return nil, last
}

// reprint prints a file anew.
func reprint(data []byte) ([]byte, error) {
	var n yaml.Node
	if err := yaml.Load(data, &n); err != nil {
		return nil, err
	}
	out, err := yaml.Dump(&n, yaml.WithIndent(2), yaml.WithCompactSeqIndent(false), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	empty := true // at the beginning, there is no empty line
	for line := range strings.Lines(string(out)) {
		if strings.Trim(line, " \n") == blank {
			if empty {
				continue
			}
			line = "\n"
		}
		b.WriteString(line)
		empty = line == "\n"
	}
	return append(bytes.TrimRight(b.Bytes(), "\n"), '\n'), nil
}

// markBlanks puts a comment where the file has empty lines between settings or comments.
func markBlanks(data []byte, root *yaml.Node) []byte {
	lines := strings.Split(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	begins := make(map[int]bool) // lines in which a setting or an entry begins
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		for i, e := range n.Content {
			if n.Kind == yaml.SequenceNode || i%2 == 0 {
				begins[e.Line] = true
			}
			visit(e)
		}
	}
	visit(root)
	var out []string
	for i, line := range lines {
		if strings.TrimSpace(line) != "" {
			out = append(out, line)
			continue
		}
		next := i + 1
		for next < len(lines) && (strings.TrimSpace(lines[next]) == "" || strings.HasPrefix(strings.TrimSpace(lines[next]), "#")) {
			next++
		}
		first := i + 1 // what the comment is indented as
		for first < len(lines) && strings.TrimSpace(lines[first]) == "" {
			first++
		}
		if next == len(lines) || !begins[next+1] || first > i+1 {
			out = append(out, line)
			continue
		}
		out = append(out, strings.Repeat(" ", indent(lines[first]))+blank)
	}
	return []byte(strings.Join(out, "\n"))
}

// sameFile returns an error if two files differ in a value or in a comment.
func sameFile(a, b []byte) error {
	var x, y any
	var n, m yaml.Node
	if err := errors.Join(yaml.Load(a, &x), yaml.Load(b, &y), yaml.Load(a, &n), yaml.Load(b, &m)); err != nil {
		return err
	}
	if !reflect.DeepEqual(x, y) || !slices.Equal(commentsOf(&n), commentsOf(&m)) {
		return errors.New("the canonical form would lose something; the file stays as it is")
	}
	return nil
}

// commentsOf returns all lines of comments, sorted.
func commentsOf(n *yaml.Node) (all []string) {
	for _, c := range []string{n.HeadComment, n.LineComment, n.FootComment} {
		for line := range strings.SplitSeq(c, "\n") {
			if line = strings.TrimSpace(line); line != "" {
				all = append(all, line)
			}
		}
	}
	for _, e := range n.Content {
		all = append(all, commentsOf(e)...)
	}
	slices.Sort(all)
	return all
}
