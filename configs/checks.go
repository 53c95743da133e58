package configs

import (
	"slices"
	"strings"
)

// The checks in this file report at most one problem with the setting at path, and
// none where decoding has already reported one.

// required reports whether the file has the setting.
func (r *report) required(path, value, example string) bool {
	if value == "" && !r.has(path) && !r.spoiled(path) {
		r.missing(path, example)
	}
	return value != ""
}

// missing says that the file lacks the setting.
func (r *report) missing(path, example string) {
	r.addf(path, "this setting is required; write it, such as %s: %s", path[strings.LastIndexByte(path, '.')+1:], example)
}

// needs rejects the settings within path that the file gives. They have no effect without the
// setting that what names.
func (r *report) needs(path, what string, settings ...string) {
	for _, s := range settings {
		if p := path + "." + s; r.source.given(p) && !r.has(p) {
			r.addf(p, "this setting needs %s; write that, or remove this setting", what)
		}
	}
}

// oneOf accepts only the words, and "" for a setting that does not apply.
func (r *report) oneOf(path, value string, words ...string) {
	r.bounds.words(path, words)
	if value != "" && !slices.Contains(words, value) && !r.has(path) {
		r.addf(path, "%q is not possible here; write %s", value, alternatives(words))
	}
}

// alternatives joins words as a sentence does: a, b or c.
func alternatives(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func (r *report) atMost(path string, n, most int) {
	r.bounds.maximum(path, most)
	if n > most {
		r.addf(path, "%d is too large; write at most %d", n, most)
	}
}

// notAbove rejects a limit that another setting makes useless.
func (r *report) notAbove(path string, n int, other string, most int) {
	if n > most {
		r.addf(path, "%d is more than %s, which is %d; write at most %d", n, other, most, most)
	}
}

// between reports whether s is within the bounds.
func (r *report) between(path string, s, least, most Size) bool {
	ok := s >= least && s <= most
	if !ok && s != 0 && !r.has(path) {
		r.addf(path, "%s is out of range; write a size from %s to %s", s, least, most)
	}
	return ok
}

func (r *report) atLeastOrNone(path string, d, least Duration) {
	if d > 0 && d < least {
		r.addf(path, "%s is too short; write at least %s, or none", d, least)
	}
}

// finite rejects none for timeouts without which Calls could stay unanswered for ever.
func (r *report) finite(path string, d Duration) {
	if d == noDuration {
		r.addf(path, "none is not possible here; write a duration such as 30s")
	}
}
