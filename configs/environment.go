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

// expandedNodes are the values that have been expanded.
type expandedNodes map[*yaml.Node]bool

// expand puts variables of the environment in the place of ${NAME} and ${NAME:-default} in all values of d. A value from
// it is one scalar, whatever is in it: it adds neither settings nor entries of lists. Names of settings and comments
// stay as they are.
func (k Known) expand(d document, r *report) (expandedNodes, bool) {
	x := expander{environment: k.Environment, document: d, r: r, nodes: make(expandedNodes)}
	x.node(d.root)
	return x.nodes, !x.failed
}

// An expander expands one document.
type expander struct {
	environment bool // whether there is one
	document    document
	r           *report
	nodes       expandedNodes
	length      int // of all values so far
	failed      bool
}

func (x *expander) node(n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 1; i < len(n.Content); i += 2 {
			x.node(n.Content[i])
		}
	case yaml.SequenceNode:
		for _, e := range n.Content {
			x.node(e)
		}
	case yaml.ScalarNode:
		x.scalar(n)
	}
}

// reference is what a value can name: $${, ${NAME}, ${NAME:-default}, or something that is none of these.
var reference = regexp.MustCompile(`\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\})?`)

// scalar expands the value n.
func (x *expander) scalar(n *yaml.Node) {
	if !strings.Contains(n.Value, "${") {
		return
	}
	fail := func(format string, args ...any) {
		x.failed = true
		x.r.add(problem{File: x.document.name, Line: n.Line, Text: fmt.Sprintf(format, args...)})
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
			fail("%q is not complete; write ${NAME} or ${NAME:-default}, or $${ for these two characters", rest[m[0]:])
			return
		default:
			name := rest[m[2]:m[3]]
			value, ok := "", false
			if x.environment {
				value, ok = os.LookupEnv(name)
			}
			if m[4] >= 0 && value == "" {
				value, ok = rest[m[6]:m[7]], true
			}
			if !ok {
				fail("the environment has no variable %s; set it, or write ${%s:-default}", name, name)
				return
			}
			out.WriteString(value)
			x.nodes[n] = true
		}
		rest = rest[m[1]:]
		if x.length+out.Len() > maxFile {
			fail("the values from the environment are longer than %s", Size(maxFile))
			return
		}
	}
	out.WriteString(rest)
	x.length += out.Len()
	n.Value = out.String()
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
