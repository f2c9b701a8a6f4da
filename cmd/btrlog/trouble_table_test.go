package main_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// troubles are the kinds of bad input and trouble that the command line is tested for. Each test looks at the message, at the exit code, and
// at what must not be lost: that what was committed is there, and that what was refused is not.
var troubles = []struct {
	kind  string
	tests []string
}{
	{"wrong command line", []string{"TestWrongCommandLines"}},
	{"wrong configuration", []string{"TestConfigMistakes"}},
	{"unknown log", []string{"TestLogErrors", "TestFollowRefusals", "TestFence"}},
	{"log deleted under its reader", []string{"TestFollowDeleted"}},
	{"bad name", []string{"TestLogErrors"}},
	{"record too large", []string{"TestLargestRecord"}},
	{"input that ends within a record", []string{"TestCutInput"}},
	{"cluster not there", []string{"TestWhereTheClusterIs", "TestClusterStatus"}},
	{"node unreachable", []string{"TestNodeProcesses", "TestClusterStatus", "TestFollowOutage"}},
	{"node that hangs", []string{"TestClusterStatus"}},
	{"quorum lost", []string{"TestNodeProcesses", "TestClusterStatus"}},
	{"disks lost for good", []string{"TestRecover"}},
	{"writer fenced", []string{"TestFencedAppend", "TestFence"}},
	{"port in use", []string{"TestNodeRefusals", "TestDevRefusals"}},
	{"directory of another node, or open already", []string{"TestNodeRefusals", "TestRestartKeepsData", "TestDevRefusals"}},
	{"start-up failure (O2)", []string{"TestNodeRefusals", "TestDevRefusals", "TestDamagedNode", "TestFullDisk", "TestStoreTrouble"}},
	{"corrupt or truncated store of a node", []string{"TestDamagedNode"}},
	{"corrupt or truncated metadata", []string{"TestDamagedMetadata"}},
	{"replaced disk", []string{"TestReplace", "TestClusterStatus"}},
	{"garbage datagrams", []string{"TestNodeGarbage"}},
	{"full disk", []string{"TestFullDisk"}},
	{"full output", []string{"TestFullOutput"}},
	{"object store read-only or unreachable", []string{"TestStoreTrouble"}},
	{"object store that is no cluster's", []string{"TestWhereTheClusterIs", "TestNodeRefusals"}},
	{"wrong cluster id", []string{"TestWrongCluster", "TestNodeRefusals", "TestNodeGarbage"}},
	{"older or newer version of the protocol", []string{"TestOtherVersions", "TestNodeGarbage"}},
	{"--from beyond the tail", []string{"TestLogErrors", "TestFollowRefusals"}},
	{"--from below the trim point", []string{"TestTrimmed", "TestFollowRefusals"}},
	{"broken pipe", []string{"TestBrokenPipe", "TestFollowReaderGone"}},
	{"Ctrl-C", []string{"TestInterruptedAppend", "TestInterruptedCat", "TestFollow", "TestFollowNobodyReads", "TestStoppedOnTerminal", "TestInterruptedSim"}},
}

// The table tells the truth: every test that it names is there.
func TestTroubles(t *testing.T) {
	have := map[string]bool{}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				have[f.Name.Name] = true
			}
		}
	}
	seen := map[string]bool{}
	for _, row := range troubles {
		if seen[row.kind] || len(row.tests) == 0 {
			t.Errorf("%q is in the table twice, or without a test", row.kind)
		}
		seen[row.kind] = true
		for _, name := range row.tests {
			if !have[name] {
				t.Errorf("%q: there is no %s", row.kind, name)
			}
		}
	}
}
