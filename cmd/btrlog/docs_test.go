package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var rewrite = flag.Bool("rewrite", false, "write docs/CLI.md anew")

const docsPath = "../../docs/CLI.md"

// docs/CLI.md is what the command tree says. 'go test ./cmd/btrlog -run TestDocs -rewrite' writes it.
func TestDocs(t *testing.T) {
	var b bytes.Buffer
	writeDocs(&b, newRoot())
	if *rewrite {
		if err := os.WriteFile(docsPath, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not what the commands say; run: go test ./cmd/btrlog -run TestDocs -rewrite", docsPath)
	}
}

func writeDocs(w io.Writer, root *cobra.Command) {
	fmt.Fprintf(w, "# The command line\n\n")
	fmt.Fprintf(w, "Generated from the command tree: do not edit, run `go test ./cmd/btrlog -run TestDocs -rewrite`.\n\n")
	writeCommand(w, root)
}

func writeCommand(w io.Writer, cmd *cobra.Command) {
	fmt.Fprintf(w, "## %s\n\n", cmd.CommandPath())
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	// Indented lines of a text are a table or a list, which Markdown keeps as it is.
	for _, part := range strings.Split(text, "\n\n") {
		head, rest, _ := strings.Cut(part, "\n  ")
		fmt.Fprintf(w, "%s\n\n", head)
		if rest != "" {
			fmt.Fprintf(w, "```\n%s\n```\n\n", strings.ReplaceAll("  "+rest, "\n  ", "\n")[2:])
		}
	}
	if cmd.HasAvailableSubCommands() {
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				anchor := strings.ReplaceAll(sub.CommandPath(), " ", "-")
				fmt.Fprintf(w, "- [%s](#%s): %s\n", sub.CommandPath(), anchor, sub.Short)
			}
		}
		fmt.Fprintln(w)
	} else {
		fmt.Fprintf(w, "```\n%s\n```\n\n", cmd.UseLine())
	}
	if cmd.Example != "" {
		fmt.Fprintf(w, "Examples:\n\n```sh\n%s\n```\n\n", strings.ReplaceAll("\n"+cmd.Example, "\n  ", "\n")[1:])
	}
	writeFlags(w, "Flags", cmd.NonInheritedFlags())
	if !cmd.HasAvailableSubCommands() {
		writeFlags(w, "Flags of all commands of `"+cmd.Parent().CommandPath()+"`", cmd.InheritedFlags())
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			writeCommand(w, sub)
		}
	}
}

func writeFlags(w io.Writer, title string, flags *pflag.FlagSet) {
	var rows []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		name := "`--" + f.Name
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " " + strings.ToUpper(kind)
		}
		if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "0s" && f.DefValue != "false" && f.DefValue != "[]" {
			usage += " (default " + f.DefValue + ")"
		}
		rows = append(rows, fmt.Sprintf("| %s` | %s |", name, strings.ReplaceAll(usage, "|", `\|`)))
	})
	if len(rows) > 0 {
		fmt.Fprintf(w, "%s:\n\n| flag | meaning |\n|---|---|\n%s\n\n", title, strings.Join(rows, "\n"))
	}
}

// Every command can be understood from its help alone: it has a text, an example that runs a command of this program, and no flag without a word.
func TestHelp(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: the short text is %q; want one line without a full stop", path, cmd.Short)
		}
		if cmd.Runnable() && !cmd.HasSubCommands() && !strings.Contains(cmd.Example, "btrlog ") {
			t.Errorf("%s has no example", path)
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: the example %q is not indented by two", path, line)
			}
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s has no text", path, f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				visit(sub)
			}
		}
	}
	visit(newRoot())
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"log", "append", "--help"}, strings.NewReader(""), &out, &errs); code != exitOK || errs.Len() > 0 || !strings.Contains(out.String(), "--chunk size") {
		t.Errorf("help: code %d, stderr %q, stdout %q", code, errs.String(), out.String())
	}
}
