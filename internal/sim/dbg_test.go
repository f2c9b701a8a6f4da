package sim

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

func TestDbg(t *testing.T) {
	for s := uint64(1); s < 60; s++ {
		a := runSeed(s, Mutant{}, true)
		b := runSeed(s, Mutant{}, true)
		if a.sum != b.sum || !bytes.Equal(a.trace, b.trace) {
			fmt.Println(s, "differs")
			os.WriteFile("/tmp/a", a.trace, 0o644)
			os.WriteFile("/tmp/b", b.trace, 0o644)
		}
	}
}
