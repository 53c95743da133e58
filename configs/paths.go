package configs

import (
	"path/filepath"
	"reflect"
	"slices"
)

// Paths returns the files that the bridge opens while it runs, beside the configuration file: those that it reads, and
// those that it makes, which are the access log, the audit log, the sockets for commands and hand-over, and a file in nlm.state. Every
// setting that is an absolute path is one of them, apart from log.audit.syslog: nobody has to allow a connection to a socket.
func (c *Config) Paths() (read, written []string) {
	written = slices.DeleteFunc([]string{c.Log.Access.Path, c.Log.Audit.Path, c.Control.Path, c.Handover.Path, c.NLM.State}, func(s string) bool { return !filepath.IsAbs(s) })
	opened := *c
	opened.Log.Audit.Syslog = ""
	collectPaths(reflect.ValueOf(&opened).Elem(), func(path string) {
		if !slices.Contains(written, path) && !slices.Contains(read, path) {
			read = append(read, path)
		}
	})
	if i := slices.Index(written, c.NLM.State); i >= 0 {
		written[i] = filepath.Join(c.NLM.State, "locks")
	}
	return read, written
}

// collectPaths calls add for each absolute path in v.
func collectPaths(v reflect.Value, add func(string)) {
	switch v.Kind() {
	case reflect.String:
		if filepath.IsAbs(v.String()) {
			add(v.String())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				collectPaths(v.Field(i), add)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			collectPaths(v.Index(i), add)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			collectPaths(v.Elem(), add)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			collectPaths(it.Value(), add)
		}
	}
}
