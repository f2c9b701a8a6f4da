package protocol

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// The relations of the limits: each constant may change, these may not.
func TestLimits(t *testing.T) {
	check := func(ok bool, what string) {
		t.Helper()
		if !ok {
			t.Error(what)
		}
	}
	check(MaxRecordBytes < moreBit, "a record's length and its flag do not share the header")
	check(MaxRecordBytes+RecordOverhead <= MaxBlockBytes, "the largest record has a block")
	check(MaxRecordBytes+MaxBatchRecords*RecordOverhead <= MaxBlockBytes, "the largest batch has a block")
	check(MaxBatchRecords <= MaxWindow, "a batch fits the largest window")
	check(MaxBatchRecords <= maxRefs, "a batch can be read in one reply")
	check(MinSegmentBytes <= DefaultSegmentBytes && DefaultSegmentBytes <= MaxSegmentBytes, "the default segment is in bounds")
	check(DefaultWindow <= MaxWindow, "the default window is in bounds")
	check(MaxEnsemble <= 16, "a slot has a bit for each member")
	check(MaxEnsemble < 256 && MaxNameBytes < 256, "the state value counts peers and the name in a byte")
	check(MaxRecordBytes < MaxSegmentBytes, "a record fits the largest segment")
	check(uint64(MaxSegmentBytes)+MaxBlockBytes < 1<<32, "offsets in a segment fit 32 bits")
	check(uint64(MaxLSN)+MaxWindow+MaxBatchRecords > uint64(MaxLSN), "LSN arithmetic does not wrap")
	check(defaultWindowBytes >= MaxRecordBytes, "the largest record fits the window's bytes")
	check(minRTO < initialRTO && initialRTO < maxRTO && maxRTO < downAfter, "the timeouts are in order")
	check(minProbe < minRTO, "a probe comes before the time-out")
	check(pushDelay < minRTO, "an idle writer pushes its watermark before it sends anything again")
	check(maxUnitsInFlight <= maxUnitsHeld, "what is in flight is held")
	check(storedMore&storedVersionMask == 0 && storedVersion&^storedVersionMask == 0, "flags and version of a stored head do not overlap")
	check(len(statusNames) == int(StatusUnavailable)+1, "every status has a name")
}

// The package is pure: no operating system, no network, no locks, no clock, no random source (DESIGN section 3).
func TestPackageIsPure(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		seen++
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range parsed.Imports {
			path := strings.Trim(imp.Path.Value, `"`)
			for _, banned := range []string{"os", "net", "sync", "time", "math/rand", "crypto/rand", "runtime", "syscall", "log", "context", "io", "unsafe"} {
				if path == banned || strings.HasPrefix(path, banned+"/") {
					t.Errorf("%s imports %s: the machines are driven by step(input, now) alone", f.Name(), path)
				}
			}
			if strings.Contains(path, ".") {
				t.Errorf("%s imports %s: package protocol stands on the standard library alone", f.Name(), path)
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: a goroutine", fset.Position(g.Pos()))
			}
			return true
		})
	}
	if seen < 10 {
		t.Errorf("only %d files were looked at", seen)
	}
}
