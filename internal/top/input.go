package top

import "unicode/utf8"

// A key is a rune that was typed, or one of the constants below.
type key rune

// Keys without a rune.
const (
	keyUp key = utf8.MaxRune + 1 + iota
	keyDown
	keyLeft
	keyRight
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
	keyBackTab
	keyOther // of no use here
)

// Control characters.
const (
	keyCtrlC     key = 0x03
	keyCtrlL     key = 0x0c
	keyCtrlU     key = 0x15
	keyCtrlZ     key = 0x1a
	keyTab       key = '\t'
	keyEnter     key = '\r'
	keyEscape    key = 0x1b
	keyBackspace key = 0x7f
)

// sequences are what terminals send for keys, after ESC.
var sequences = map[string]key{
	"[A": keyUp, "[B": keyDown, "[C": keyRight, "[D": keyLeft, "OA": keyUp, "OB": keyDown, "OC": keyRight, "OD": keyLeft,
	"[5~": keyPageUp, "[6~": keyPageDown, "[H": keyHome, "[F": keyEnd, "OH": keyHome, "OF": keyEnd,
	"[1~": keyHome, "[4~": keyEnd, "[7~": keyHome, "[8~": keyEnd, "[Z": keyBackTab,
}

// decode returns the keys in what a terminal has sent at once. A terminal sends the sequence of a key at
// once, so an ESC at the end is the key Escape.
func decode(b []byte) []key {
	var keys []key
	for len(b) > 0 {
		if b[0] == byte(keyEscape) {
			n := sequenceLen(b[1:])
			if n == 0 {
				keys, b = append(keys, keyEscape), b[1:]
				continue
			}
			k, ok := sequences[string(b[1:1+n])]
			if !ok {
				k = keyOther
			}
			keys, b = append(keys, k), b[1+n:]
			continue
		}
		r, n := utf8.DecodeRune(b)
		k := key(r)
		switch r {
		case utf8.RuneError:
			k = keyOther
		case '\b':
			k = keyBackspace
		case '\n':
			k = keyEnter
		}
		keys, b = append(keys, k), b[n:]
	}
	return keys
}

// sequenceLen returns the length of the sequence at the beginning of b, which follows an ESC: CSI
// parameters and a final octet, or SS3 and one octet. It is 0 if there is none.
func sequenceLen(b []byte) int {
	if len(b) >= 2 && b[0] == 'O' {
		return 2
	}
	if len(b) < 2 || b[0] != '[' {
		return 0
	}
	for i, c := range b[1:] {
		if c >= 0x40 && c <= 0x7e {
			return i + 2
		}
	}
	return len(b)
}
