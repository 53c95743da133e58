// Package settings has the options of listeners and upstreams, what is wrong with them, and the numbers that follow
// from them: how memory is divided, how many connections an upstream may have, and which upstreams a reload replaces.
package settings
