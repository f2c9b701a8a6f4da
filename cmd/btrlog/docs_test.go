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

var rewrite = flag.Bool("rewrite", false, "write docs/CLI.md and docs/btrlog.1 anew")

// docs/CLI.md and the manual page are what the command tree says. 'go test ./cmd/btrlog -run TestDocs -rewrite' writes them.
func TestDocs(t *testing.T) {
	for path, write := range map[string]func(io.Writer, *cobra.Command){"../../docs/CLI.md": writeDocs, "../../docs/btrlog.1": writeManual} {
		var b bytes.Buffer
		write(&b, newRoot())
		if *rewrite {
			if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, b.Bytes()) {
			t.Errorf("%s is not what the commands say; run: go test ./cmd/btrlog -run TestDocs -rewrite", path)
		}
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
		head, rest, _ := strings.Cut("\n"+part, "\n  ")
		if head != "" {
			fmt.Fprintf(w, "%s\n\n", head[1:])
		}
		if rest != "" {
			fmt.Fprintf(w, "```\n%s\n```\n\n", strings.ReplaceAll("  "+rest, "\n  ", "\n")[2:])
		}
	}
	if cmd.HasAvailableSubCommands() {
		title := ""
		for _, sub := range inGroups(cmd) {
			if sub.IsAvailableCommand() {
				if sub.GroupID != title {
					title = sub.GroupID
					fmt.Fprintf(w, "\n%s:\n\n", title)
				}
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
	writeFlags(w, flagTitle(cmd), cmd.NonInheritedFlags())
	if cmd.HasAvailableInheritedFlags() {
		path := cmd.Parent().CommandPath()
		fmt.Fprintf(w, "And the flags of [all commands of `%s`](#%s).\n\n", path, strings.ReplaceAll(path, " ", "-"))
	}
	if cmd.Name() == "config" {
		writeKeys(w)
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			writeCommand(w, sub)
		}
	}
}

// inGroups are the commands below cmd, as its help lists them.
func inGroups(cmd *cobra.Command) (subs []*cobra.Command) {
	for _, g := range cmd.Groups() {
		for _, sub := range cmd.Commands() {
			if sub.GroupID == g.ID {
				subs = append(subs, sub)
			}
		}
	}
	for _, sub := range cmd.Commands() {
		if sub.GroupID == "" {
			subs = append(subs, sub)
		}
	}
	return subs
}

func flagTitle(cmd *cobra.Command) string {
	if cmd.HasAvailableSubCommands() && cmd.HasParent() {
		return "Flags of all commands of `" + cmd.CommandPath() + "`"
	}
	return "Flags"
}

func writeKeys(w io.Writer) {
	fmt.Fprintf(w, "The settings:\n\n| key in the file | environment | flag | default |\n|---|---|---|---|\n")
	for _, f := range settings() {
		value := plainDefault(f)
		if value != "" {
			value = "`" + value + "`"
		}
		command := "every command that has it"
		if section, _, ok := strings.Cut(keyOf(f), "."); ok {
			command = "btrlog " + section
		}
		fmt.Fprintf(w, "| `%s` | `%s` | `--%s` of %s | %s |\n", keyOf(f), variable(keyOf(f)), f.Name, command, value)
	}
	fmt.Fprintln(w)
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
		kind, usage := flagUsage(f)
		if kind != "" {
			name += " " + kind
		}
		rows = append(rows, fmt.Sprintf("| %s` | %s |", name, strings.ReplaceAll(usage, "|", `\|`)))
	})
	if len(rows) > 0 {
		fmt.Fprintf(w, "%s:\n\n| flag | meaning |\n|---|---|\n%s\n\n", title, strings.Join(rows, "\n"))
	}
}

// flagUsage is the name of a flag's value, "" for a switch, and its meaning with its default.
func flagUsage(f *pflag.Flag) (kind, usage string) {
	kind, usage = pflag.UnquoteUsage(f)
	if f.DefValue != "" && f.DefValue != "0" && f.DefValue != "0s" && f.DefValue != "false" && f.DefValue != "[]" {
		usage += " (default " + f.DefValue + ")"
	}
	return strings.ToUpper(kind), usage
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
