package configs

import (
	"fmt"
	"reflect"
	"strings"
)

// A Change is one setting that two configurations have differently. What has a
// name is found by it, wherever in its list it stands.
type Change struct {
	Path     string // listeners[nfs].limits.calls
	Old, New string // as a file would have them; "" where it is not
}

// String is the change for a log: path: old -> new.
func (c Change) String() string {
	none := func(s string) string {
		if s == "" {
			return "(none)"
		}
		return s
	}
	return c.Path + ": " + none(c.Old) + " -> " + none(c.New)
}

// Diff lists what differs between two complete configurations, in the order of the
// settings. Listeners and upstreams that only one of them has are one Change each.
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
	find := func(list reflect.Value, name string) (reflect.Value, bool) {
		for i := range list.Len() {
			if e := list.Index(i); e.FieldByName("Name").String() == name {
				return e, true
			}
		}
		return reflect.Value{}, false
	}
	for i := range old.Len() {
		e := old.Index(i)
		name := e.FieldByName("Name").String()
		p := path + "[" + name + "]"
		if n, ok := find(next, name); ok {
			cs = diff(cs, p, e, n)
		} else {
			cs = append(cs, Change{Path: p, Old: text(e)})
		}
	}
	for i := range next.Len() {
		e := next.Index(i)
		name := e.FieldByName("Name").String()
		if _, ok := find(old, name); !ok {
			cs = append(cs, Change{Path: path + "[" + name + "]", New: text(e)})
		}
	}
	return cs
}

// isMapping reports whether t is a type of settings, and not a value that happens
// to be a struct.
func isMapping(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !t.Implements(reflect.TypeFor[fmt.Stringer]())
}

func hasName(t reflect.Type) bool {
	if !isMapping(t) {
		return false
	}
	_, ok := t.FieldByName("Name")
	return ok
}

func settingNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Tag.Get("mapstructure")
	}
	return names
}

// text is a value as a file would have it. Settings that have none are left out.
func text(v reflect.Value) string {
	if s, ok := v.Interface().(fmt.Stringer); ok {
		if d, ok := s.(Duration); ok && d == 0 {
			return ""
		}
		if n, ok := s.(Size); ok && n == 0 {
			return ""
		}
		if p, ok := s.(Ports); ok && p == (Ports{}) {
			return ""
		}
		return s.String()
	}
	switch {
	case v.Kind() == reflect.Slice:
		if v.Len() == 0 {
			return ""
		}
		all := make([]string, v.Len())
		for i := range all {
			all[i] = text(v.Index(i))
		}
		return "[" + strings.Join(all, ", ") + "]"
	case isMapping(v.Type()):
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
	case v.Kind() == reflect.Int && v.Int() == 0:
		return "" // no setting may be 0
	}
	return fmt.Sprint(v.Interface())
}
