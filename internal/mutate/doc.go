// Package mutate breaks the code on purpose, one small change at a time, and looks whether the tests notice.
//
// A change never touches the tree: Overlay writes the changed file beside it, and the Go tools take that instead
// (-overlay). Named mutations stand in named.yaml, each with the test that must catch it. Others are drawn by a seed from
// the syntax of the same files. `make mutate` runs both and writes docs/mutations.md.
package mutate
