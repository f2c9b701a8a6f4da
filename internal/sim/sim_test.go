package sim

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

func TestOne(t *testing.T) {
	seed, _ := strconv.Atoi(os.Getenv("SEED"))
	o := runSeed(uint64(seed), Mutant{}, true)
	os.WriteFile("/tmp/simtrace.txt", o.trace, 0o644)
	t.Logf("%s", o.counters.text())
	if o.failure != nil {
		t.Fatalf("%v\n%s\n", o.failure, o.failure.Params)
	}
}

func TestMany(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("N"))
	var c counters
	for s := 1; s <= n; s++ {
		t0 := time.Now()
		o := runSeed(uint64(s), Mutant{}, false)
		fmt.Println(s, time.Since(t0), o.counters.Events, o.failure)
		c.merge(&o.counters)
		if o.failure != nil {
			t.Errorf("seed %d: %v", s, o.failure)
		}
	}
	t.Logf("%s", c.text())
}
