// Package peerlogs holds the configuration of what BtrLog is compared with. It is a module of its own, so that its peers weigh on nobody.
package peerlogs

import "embed"

// BookKeeper is its configuration and the source of its client.
//
//go:embed bookkeeper
var BookKeeper embed.FS
