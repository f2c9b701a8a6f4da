//go:build !linux

// Command torture needs Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "torture: failed: network namespaces, TAP devices and nft exist on Linux only")
	os.Exit(1)
}
