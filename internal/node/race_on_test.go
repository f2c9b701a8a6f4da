//go:build race

package node

// raceEnabled: the race detector allocates too.
const raceEnabled = true
