// Package faults keeps the list of known faults honest.
//
// docs/faults.yaml lists every known way in which a system of this kind goes wrong, and in lines of its own what is right
// instead. The assertion that shows such a line is marked where it stands, at its line or in the line above:
//
//	if got != want { // shows C26.2
//	/* shows C26.2, C27.1 */
//	# shows C26.2
//	shows: [C26.2]        (a key beside an expectation of a case of the simulator)
//
// Scan finds the marks, Registry.Check says what is not shown and which mark shows nothing, WriteDoc makes docs/faults.md,
// and Ran reads the logs of a run of the tests and says which named test did not run or did not pass. PlayTests makes such a log:
// it plays the tests, and what failed once more.
package faults

//go:generate go run ./cmd doc
