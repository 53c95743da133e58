package configs

import (
	"fmt"
	"reflect"
	"strings"
)

// A Change is one setting that differs between two configurations.
type Change struct {
	Path     string // such as listeners[nfs].limits.calls
	Old, New string // in the format of a file; "" for a setting that is not there
}

// Diff returns the settings that differ between two complete configurations, in the order of
// the Config. It matches listeners and upstreams by name, whatever their positions in the
// lists. A listener or upstream that only one of the configurations has is one Change.
func Diff(old, next *Config) []Change {
	return diff(nil, "", reflect.ValueOf(old).Elem(), reflect.ValueOf(next).Elem())
}

// diff appends the changes within the setting at path.
func diff(cs []Change, path string, old, next reflect.Value) []Change {
	switch {
	case isMapping(old.Type()):
		for i, name := range settingNames(old.Type()) {
			if name == "" {
				continue
			}
			if path != "" {
				name = path + "." + name
			}
			cs = diff(cs, name, old.Field(i), next.Field(i))
		}
		return cs
	case old.Kind() == reflect.Slice && hasName(old.Type().Elem()):
		return diffNamed(cs, path, old, next)
	}
	if a, b := text(old), text(next); a != b {
		cs = append(cs, Change{path, a, b})
	}
	return cs
}

// diffNamed matches the elements of two lists by their names.
func diffNamed(cs []Change, path string, old, next reflect.Value) []Change {
	for i := range old.Len() {
		o := old.Index(i)
		p := path + "[" + nameOf(o) + "]"
		if n, ok := findNamed(next, nameOf(o)); ok {
			cs = diff(cs, p, o, n)
		} else {
			cs = append(cs, Change{Path: p, Old: text(o)})
		}
	}
	for i := range next.Len() {
		n := next.Index(i)
		if _, ok := findNamed(old, nameOf(n)); !ok {
			cs = append(cs, Change{Path: path + "[" + nameOf(n) + "]", New: text(n)})
		}
	}
	if old.Type().Elem() == reflect.TypeFor[Rule]() {
		cs = diffOrder(cs, path, old, next)
	}
	return cs
}

// diffOrder compares the order of rules, the first of which counts, that are in both lists.
func diffOrder(cs []Change, path string, old, next reflect.Value) []Change {
	common := func(list, other reflect.Value) string {
		var names []string
		for i := range list.Len() {
			if _, ok := findNamed(other, nameOf(list.Index(i))); ok {
				names = append(names, nameOf(list.Index(i)))
			}
		}
		return strings.Join(names, ", ")
	}
	if a, b := common(old, next), common(next, old); a != b {
		cs = append(cs, Change{path, a, b})
	}
	return cs
}

func findNamed(list reflect.Value, name string) (reflect.Value, bool) {
	for i := range list.Len() {
		if e := list.Index(i); nameOf(e) == name {
			return e, true
		}
	}
	return reflect.Value{}, false
}

func nameOf(v reflect.Value) string { return v.FieldByName("Name").String() }

func hasName(t reflect.Type) bool {
	if !isMapping(t) {
		return false
	}
	_, ok := t.FieldByName("Name")
	return ok
}

// isMapping reports whether t is a type of settings, and not a single value that happens
// to be a struct.
func isMapping(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !t.Implements(reflect.TypeFor[fmt.Stringer]())
}

func settingNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Tag.Get("mapstructure")
	}
	return names
}

// text formats a value as a file has it. A setting without a value is "".
func text(v reflect.Value) string {
	s, isValue := v.Interface().(fmt.Stringer)
	switch {
	case v.Kind() == reflect.Slice:
		return listText(v)
	case isMapping(v.Type()):
		return mappingText(v)
	case v.IsZero() && v.Kind() != reflect.Uint32:
		return "" // only the version of a route may be 0
	case isValue:
		return s.String()
	}
	return fmt.Sprint(v.Interface())
}

func listText(v reflect.Value) string {
	if v.Len() == 0 {
		return ""
	}
	all := make([]string, v.Len())
	for i := range all {
		all[i] = text(v.Index(i))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// mappingText leaves out settings without a value.
func mappingText(v reflect.Value) string {
	var all []string
	for i, name := range settingNames(v.Type()) {
		if s := text(v.Field(i)); name != "" && s != "" {
			all = append(all, name+": "+s)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "{" + strings.Join(all, ", ") + "}"
}
