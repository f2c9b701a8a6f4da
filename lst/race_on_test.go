//go:build race

package lst

// underRace makes the long tests smaller: the race detector takes ten times as long.
const underRace = true
