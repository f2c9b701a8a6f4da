//go:build race

package sim

// raced: a seed costs ten times as much under the race detector, and one event of a world runs at a time, so that few seeds show what
// there is to be seen. All of them run without it (make check-sim).
const raced = true
