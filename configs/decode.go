package configs

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// addDecode notes the leaves of mapstructure's tree of errors, which carry the
// names of settings. What wraps them is prose.
func (r *report) addDecode(err error) {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, e := range e.Unwrap() {
			r.addDecode(e)
		}
	case interface {
		Name() string
		Unwrap() error
	}:
		r.addf(settingPath(e.Name()), "%v", e.Unwrap())
	case interface{ Unwrap() error }:
		r.addDecode(e.Unwrap())
	default:
		r.addf("", "%v", err)
	}
}

// settingPath is the path of a setting from mapstructure's name for it.
func settingPath(name string) string { return strings.ToLower(name) }

// decodeValue is called by mapstructure for every value before it converts.
// Values become the types of value.go here, and what mapstructure would bend to
// fit, a number for a list, text for a number, is refused.
func decodeValue(from, to reflect.Value) (any, error) {
	if from.Kind() == reflect.Interface {
		from = from.Elem()
	}
	data := from.Interface()
	switch to.Interface().(type) {
	case Size:
		return scalar(data, ParseSize)
	case Duration:
		return scalar(data, parseDuration)
	case Switch:
		return scalar(data, parseSwitch)
	case Prefix:
		return scalar(data, parsePrefix)
	case Ports:
		return scalar(data, parsePorts)
	case Program:
		return scalar(data, func(s string) (Program, error) { return Program(s), nil })
	}
	switch to.Kind() {
	case reflect.Slice:
		if from.Kind() != reflect.Slice {
			return nil, fmt.Errorf("want a list, not %s", describe(data))
		}
	case reflect.Struct:
		if from.Kind() != reflect.Map {
			return nil, fmt.Errorf("want settings, name: value, not %s", describe(data))
		}
	case reflect.String:
		if from.Kind() != reflect.String {
			return nil, fmt.Errorf("want text, not %s", describe(data))
		}
	case reflect.Int:
		if n, ok := data.(int); !ok {
			return nil, fmt.Errorf("want a whole number, not %s", describe(data))
		} else if n <= 0 {
			return nil, fmt.Errorf("%d must be greater than 0", n)
		}
	case reflect.Uint32:
		if n, ok := data.(int); !ok || n < 0 || n > 1<<32-1 {
			return nil, fmt.Errorf("want a whole number up to 4294967295, not %s", describe(data))
		}
	}
	return data, nil
}

// scalar parses a plain value.
func scalar[T any](data any, parse func(string) (T, error)) (any, error) {
	switch data.(type) {
	case string, int, int64, uint64, bool:
	default:
		return nil, fmt.Errorf("want a plain value, not %s", describe(data))
	}
	v, err := parse(fmt.Sprint(data))
	if err != nil {
		return nil, err
	}
	return v, nil
}

// describe is data for a message, briefly.
func describe(data any) string {
	switch d := data.(type) {
	case string:
		if len(d) > 40 {
			d = d[:40] + "..."
		}
		return strconv.Quote(d)
	case bool, int, int64, uint64, float64:
		return fmt.Sprint(d)
	}
	switch reflect.ValueOf(data).Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "settings"
	}
	return fmt.Sprintf("%T", data)
}
