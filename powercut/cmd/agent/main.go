// Command agent is the only program of the virtual machine beside the node: its first process, and the worker of the storage engine.
package main

import (
	"fmt"
	"os"

	"github.com/btrlog/btrlog/powercut/guest"
)

func main() {
	if os.Getpid() == 1 {
		guest.Agent()
		return
	}
	if err := guest.Worker(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}
