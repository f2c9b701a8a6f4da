//go:build race

package main_test

// raceEnabled: the binary is built with the race detector when the tests are.
const raceEnabled = true
