package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

const rootLong = `btrlog is a write-ahead log for databases that run in a cloud. This one binary runs log nodes, a cluster for development,
and the tools that read and write logs.

Exit codes of all commands:
  0  done; of a command that runs until it is stopped: stopped, by Ctrl-C or SIGTERM
  1  failed, or interrupted before the end; one line on standard error says what, where and what to do
  2  the command line or the configuration is wrong; nothing was tried`

const rootExample = `  btrlog dev &                            # a cluster of three nodes in ./btrlog-dev; it says when it is ready
  btrlog log create orders
  printf 'one\ntwo\n' | btrlog log append orders
  btrlog log cat --lines orders`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "btrlog",
		Short:         "A quorum-replicated write-ahead log",
		Long:          rootLong,
		Example:       rootExample,
		SilenceErrors: true, // report prints them, on one line
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%s", plainFlagError(err.Error())) })
	root.CompletionOptions.DisableDefaultCmd = true // completionCommand is its documented form
	root.SetHelpCommand(helpCommand())
	root.Version = readVersions().Version
	root.SetVersionTemplate("btrlog {{.Version}}\n")
	root.Flags().Bool("version", false, "print the version; 'btrlog version' says more") // here, so that it does not take -v
	group(root)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return settle(cmd) }
	grouped(root, "To begin", devCommand(), logCommand())
	grouped(root, "Run a cluster, and look at it", nodeCommand(), clusterCommand(), nodesCommand(), archiveCommand(), configCommand())
	grouped(root, "Look inside, reckon and test", lstCommand(), costCommand(), simCommand())
	grouped(root, "About this program", versionCommand(), completionCommand())
	root.SetHelpCommandGroupID("About this program")
	return root
}

// grouped adds commands under a title of their own.
func grouped(cmd *cobra.Command, title string, subs ...*cobra.Command) {
	cmd.AddGroup(&cobra.Group{ID: title, Title: title + ":"})
	for _, sub := range subs {
		sub.GroupID = title
	}
	cmd.AddCommand(subs...)
}

// group makes a command that only has subcommands refuse to do nothing silently.
func group(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs
	cmd.DisableFlagsInUseLine = true
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			cmd.SetOut(cmd.ErrOrStderr())
			_ = cmd.Help() // where standard error is closed there is nobody to tell
			return errHelpShown
		}
		return unknownCommand(cmd, args[0])
	}
}

func unknownCommand(cmd *cobra.Command, typed string) error {
	msg := fmt.Sprintf("unknown command %q", typed)
	if s := suggestions(cmd, typed); len(s) > 0 {
		msg += "; did you mean " + strings.Join(s, " or ") + "?"
	}
	return &usageError{errors.New(msg)}
}

// helpCommand is for those who write 'btrlog help log append' instead of 'btrlog log append --help'.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "help [COMMAND ...]",
		Short:             "Show the help of a command",
		Example:           "  btrlog help log append",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return &usageError{err}
			case len(rest) > 0 && about.HasSubCommands():
				return unknownCommand(about, rest[0])
			case len(rest) > 0:
				return usagef("%s has no command %q", about.CommandPath(), rest[0])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// numberError is what the standard library says of a number, inside the message about a flag.
var numberError = regexp.MustCompile(`strconv\.Parse(\w+): parsing "(?:[^"\\]|\\.)*": (.*)$`)

// plainFlagError says what is wanted instead of naming the function that did not get it.
func plainFlagError(msg string) string {
	if strings.Contains(msg, "time: ") { // all of the package's messages, about a unit that is missing or unknown
		return msg + "; write for example 500ms, 10s or 168h"
	}
	m := numberError.FindStringSubmatchIndex(msg)
	if m == nil {
		return msg
	}
	want := "a whole number is needed"
	switch kind, why := msg[m[2]:m[3]], msg[m[4]:m[5]]; {
	case strings.Contains(why, "out of range"):
		want = "the number is too large"
	case kind == "Uint":
		want = "a whole number, 0 or more, is needed"
	case kind == "Bool":
		want = "true or false is needed"
	}
	return msg[:m[0]] + want
}

// suggestions are the commands that typed may have meant: those that it begins, or else those that are the fewest slips away. More than
// two slips are no slip.
func suggestions(cmd *cobra.Command, typed string) []string {
	var begun, names []string
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		names = append(names, sub.Name())
		if typed != "" && strings.HasPrefix(sub.Name(), typed) {
			begun = append(begun, sub.Name())
		}
	}
	if len(begun) > 0 {
		return begun
	}
	return nearest(typed, names)
}

// nearest are the names that are the fewest slips away from what was typed, at most two.
func nearest(typed string, names []string) []string {
	var near []string
	best := 2
	for _, name := range names {
		d := slips(typed, name)
		if d < best {
			best, near = d, nil
		}
		if d == best {
			near = append(near, name)
		}
	}
	return near
}

// slips counts the typing errors between two words: a byte too many, too few or wrong, or two neighbours exchanged.
func slips(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			wrong := 1
			if a[i-1] == b[j-1] {
				wrong = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+wrong)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

// noArgs and oneArg check the number of arguments and name what is missing.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

func atMostOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usagef("unexpected argument %q after %s %q", args[1], what, args[0])
		}
		return nil
	}
}

func oneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usagef("%s is missing", what)
		case len(args) > 1:
			return usagef("unexpected argument %q after %s %q", args[1], what, args[0])
		}
		return nil
	}
}

func completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a completion script for a shell",
		Long:  "Print a completion script for a shell. Where it goes depends on the shell; the examples load it into the running one.",
		Example: `  source <(btrlog completion bash)
  btrlog completion zsh > "${fpath[1]}/_btrlog"
  btrlog completion fish | source`,
		ValidArgs: shells,
		Args:      oneArg("the shell's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(out)
			}
			return usagef("unknown shell %q; known are %s", args[0], strings.Join(shells, ", "))
		},
	}
}
