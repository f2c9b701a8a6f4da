package main

import (
	"os"
	"runtime"
)

// roomForThreads lets the Go runtime run so many more threads at a time than there are processors, unless GOMAXPROCS says how many.
//
// A shard sleeps in the kernel, and the runtime meanwhile lends its place to other work: to archiving, say, which computes for tens of
// milliseconds. When the shard wakes up and all places are lent it waits until one is given back, which the runtime asks for after 10 ms and the
// kernel, where archiving gives way, lets it wait for longer. With places to spare the kernel alone decides who runs, and it
// prefers who has slept. A place that nobody uses costs nothing.
func roomForThreads(more int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + more)
	}
}

// sparePlaces are for what else computes beside the shards' threads: two segments that are archived, metadata, metrics, the collector.
const sparePlaces = 3
