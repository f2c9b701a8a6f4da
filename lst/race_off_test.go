//go:build !race

package lst

const underRace = false
