// Package measure measures what the bridge, as a program, costs: processor time and memory beside the formulas of
// docs/scaling.md, what a bad client costs its neighbours, and what thousands of NFSv4.2 clients do. It has only tests,
// and each skips unless its environment variable is set: make size-check, bench-neighbours and bench-sessions set them.
package measure
