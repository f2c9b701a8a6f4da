package main

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeShowsThisProgram: the README's Go code is what the compiler has seen here.
func TestReadmeShowsThisProgram(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	if !ok {
		t.Fatal("README.md has no Go block")
	}
	block, _, _ := strings.Cut(rest, "```")
	indented := "\t" + strings.ReplaceAll(strings.TrimSuffix(block, "\n"), "\n", "\n\t")
	if !strings.Contains(string(program), indented) {
		t.Fatalf("the README's Go block is not in main.go:\n%s", block)
	}
}
