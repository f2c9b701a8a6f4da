package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// writeManual writes the manual page, in the macros of man(7), from the same tree as the help.
func writeManual(w io.Writer, root *cobra.Command) {
	m := &manual{w: w}
	m.line(`.\" Generated from the command tree: do not edit, run go test ./cmd/btrlog -run TestDocs -rewrite.`)
	m.line(`.TH BTRLOG 1 "" "BtrLog" "BtrLog"`)
	m.line(".SH NAME")
	m.line(`btrlog \- ` + roff(strings.ToLower(root.Short[:1])+root.Short[1:]))
	m.line(".SH SYNOPSIS")
	m.line(`.B btrlog`)
	m.line(`.I COMMAND`)
	m.line(`[\fIARGUMENT\fR ...] [\fIFLAG\fR ...]`)
	m.line(".SH DESCRIPTION")
	about, exits, _ := strings.Cut(root.Long, "\n\nExit codes of all commands:\n")
	m.text(about)
	m.line(".SH COMMANDS")
	for _, sub := range inGroups(root) {
		m.command(sub)
	}
	m.line(".SH CONFIGURATION")
	for _, sub := range root.Commands() {
		if sub.Name() == "config" {
			m.text(sub.Long)
		}
	}
	for _, f := range settings() {
		m.line(".TP")
		m.line(fmt.Sprintf(`\fB%s\fR, \fB%s\fR`, roff(keyOf(f)), roff(variable(keyOf(f)))))
		m.line(roff("As --" + f.Name + ": " + f.Usage + "."))
	}
	m.line(".SH EXIT STATUS")
	for line := range strings.Lines(exits) {
		code, meaning, _ := strings.Cut(strings.TrimSpace(line), "  ")
		m.line(".TP")
		m.line(`\fB` + code + `\fR`)
		m.line(roff(meaning) + ".")
	}
	m.line(".SH EXAMPLES")
	m.examples(root.Example)
}

type manual struct{ w io.Writer }

func (m *manual) line(s string) { fmt.Fprintln(m.w, s) }

// roff escapes what the formatter would take for its own.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, `-`, `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// text writes paragraphs. Indented lines are a table or a list and stay as they are.
func (m *manual) text(s string) {
	for i, part := range strings.Split(s, "\n\n") {
		if i > 0 {
			m.line(".PP")
		}
		kept := false
		for line := range strings.Lines(part) {
			line = strings.TrimSuffix(line, "\n")
			if indented := strings.HasPrefix(line, "  "); indented != kept {
				kept = indented
				m.line(map[bool]string{true: ".RS\n.nf", false: ".fi\n.RE"}[kept])
			}
			m.line(roff(strings.TrimPrefix(line, "  ")))
		}
		if kept {
			m.line(".fi\n.RE")
		}
	}
}

func (m *manual) command(cmd *cobra.Command) {
	if !cmd.IsAvailableCommand() {
		return
	}
	m.line(".SS " + roff(cmd.UseLine()))
	if cmd.Name() == "config" && cmd.HasSubCommands() {
		m.text(cmd.Short + ": see CONFIGURATION.")
	} else if cmd.Long != "" {
		m.text(cmd.Long)
	} else {
		m.text(cmd.Short + ".")
	}
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		kind, usage := flagUsage(f)
		name := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			name = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + name
		}
		if kind != "" {
			name += ` \fI` + kind + `\fR`
		}
		m.line(".TP")
		m.line(name)
		m.line(roff(usage))
	})
	if cmd.HasAvailableInheritedFlags() {
		m.line(".PP")
		m.line(roff("And the flags of all commands of " + cmd.Parent().CommandPath() + "."))
	}
	if !cmd.HasSubCommands() {
		m.line(".PP")
		m.examples(cmd.Example)
	}
	for _, sub := range inGroups(cmd) {
		m.command(sub)
	}
}

func (m *manual) examples(s string) {
	if s == "" {
		return
	}
	m.line(".RS\n.nf")
	for line := range strings.Lines(s) {
		m.line(roff(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "  ")))
	}
	m.line(".fi\n.RE")
}

// What a formatter would take for a request that it does not know disappears from the page without a word.
func TestManualRequests(t *testing.T) {
	var b strings.Builder
	writeManual(&b, newRoot())
	known := []string{".TH ", ".SH ", ".SS ", ".PP", ".TP", ".RS", ".RE", ".nf", ".fi", ".B ", ".I ", `.\" `}
	inside := 0
	for n, line := range strings.Split(b.String(), "\n") {
		if !strings.HasPrefix(line, ".") && !strings.HasPrefix(line, "'") {
			continue
		}
		ok := false
		for _, k := range known {
			ok = ok || line == strings.TrimSpace(k) || strings.HasPrefix(line, k)
		}
		if !ok {
			t.Errorf("line %d: %q is no request of man(7)", n+1, line)
		}
		switch line {
		case ".nf":
			inside++
		case ".fi":
			inside--
		}
		if inside < 0 || inside > 1 {
			t.Fatalf("line %d: %s within %d", n+1, line, inside)
		}
	}
	if got := roff(`.a\n -x`); got != `\&.a\en \-x` {
		t.Errorf("an escaped line is %q", got)
	}
}
