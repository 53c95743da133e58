package configs

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// prefix begins the variables that override settings.
const prefix = "RDMABRIDGE_"

// reference is what a value can name: $${, ${NAME}, ${NAME:-default}, or something that is none of these.
var reference = regexp.MustCompile(`\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\})?`)

// expand puts variables of the environment in the place of ${NAME} and ${NAME:-default} in n, and reports whether it
// did. A value from the environment is one scalar, whatever is in it: it adds neither settings nor entries of lists.
func (w *walk) expand(n *yaml.Node) (expanded bool) {
	fail := func(format string, args ...any) bool {
		w.incomplete = true
		w.report(n, "", format, args...)
		return false
	}
	var out strings.Builder
	rest := n.Value
	for {
		m := reference.FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		out.WriteString(rest[:m[0]])
		all := rest[m[0]:m[1]]
		switch {
		case all == "$${":
			out.WriteString("${")
		case m[2] < 0:
			return fail("%q is not complete; write ${NAME} or ${NAME:-default}, or $${ for these two characters", rest[m[0]:])
		default:
			name := rest[m[2]:m[3]]
			var value string
			ok := false
			if w.environment {
				value, ok = os.LookupEnv(name)
			}
			if m[4] >= 0 && value == "" {
				value, ok = rest[m[6]:m[7]], true
			}
			if !ok {
				return fail("the environment has no variable %s; set it, or write ${%s:-default}", name, name)
			}
			out.WriteString(value)
			expanded = true
		}
		rest = rest[m[1]:]
		if w.length+out.Len() > maxFile {
			return fail("the values from the environment are longer than %s", Size(maxFile))
		}
	}
	w.length += out.Len()
	n.Value = out.String() + rest
	return expanded
}

// setType makes n, a value from the environment for a setting that is text or something else, what the value
// looks like. An empty value is as if there were no setting.
func setType(n *yaml.Node, isText bool) {
	n.Style, n.Tag = 0, "!!str" // which suits all other types of settings: decodeValue
	switch _, err := strconv.Atoi(n.Value); {
	case n.Value == "":
		n.Tag = "!!null"
	case !isText && err == nil:
		n.Tag = "!!int"
	}
}

// variables has the name of the variable of each setting that one can override: single values outside lists.
var variables = func() map[string]string {
	all := make(map[string]string)
	var add func(path string, s *settings)
	add = func(path string, s *settings) {
		for name, sub := range s.names {
			p := name
			if path != "" {
				p = path + "." + name
			}
			switch {
			case sub.list:
			case len(sub.names) > 0:
				add(p, sub)
			default:
				all[p] = prefix + strings.ToUpper(strings.ReplaceAll(p, ".", "_"))
			}
		}
	}
	add("", schema)
	return all
}()

// unknownVariables warns of variables whose names are almost those of settings. Others are left alone: Kubernetes sets
// RDMABRIDGE_PORT and others for a Service with the name rdmabridge.
func (k Known) unknownVariables() (ps Problems) {
	if !k.Environment {
		return nil
	}
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, prefix) || value == "" {
			continue
		}
		best, distance := "", 3
		for path, known := range variables {
			if d := editDistance(name, known); d < distance || d == distance && path < best {
				best, distance = path, d
			}
		}
		if best != "" && distance > 0 {
			ps = append(ps, problem{File: name, Text: fmt.Sprintf("no setting has this variable; did you mean %s, for %s?", variables[best], best)})
		}
	}
	slices.SortFunc(ps, func(a, b problem) int { return strings.Compare(a.File, b.File) })
	return ps
}
