package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/objstore"
)

// Exit codes. They are documented in the root command's help.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// usageError is a wrong command line: nothing was tried.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errHelpShown ends a command that printed its help because it was called without its verb.
var errHelpShown = errors.New("help was shown")

// exitError ends with a code of its own and prints nothing: everything was said.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// hinted is an error with what to do about it, which replaces the general advice of its kind.
type hinted struct {
	err  error
	hint string
}

func (e *hinted) Error() string { return e.err.Error() }
func (e *hinted) Unwrap() error { return e.err }

// report prints err as one line and returns the exit code.
func report(stderr io.Writer, cmd *cobra.Command, err error) int {
	var usage *usageError
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errHelpShown):
		return exitUsage
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "btrlog: %s; see '%s --help'\n", oneLine(err.Error()), cmd.CommandPath())
		return exitUsage
	}
	line := oneLine(message(err))
	hint := advice(err)
	if hint == "" {
		hint = noSuchLog(cmd, err)
	}
	if hint != "" {
		line += "; " + hint
	}
	fmt.Fprintf(stderr, "btrlog: %s\n", line)
	if errors.Is(err, btrlog.ErrInvalid) {
		return exitUsage // a name or an option that no cluster would take
	}
	return exitFailure
}

// oneLine makes a message one line, without the prefix that the package gives its errors: the program's name is before it.
func oneLine(s string) string {
	s = strings.TrimPrefix(s, "btrlog: ")
	s = strings.ReplaceAll(s, ": btrlog: ", ": ")
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// message is the text of err, without what the layers below the client repeat of it.
func message(err error) string {
	var e *btrlog.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	short := *e
	short.Err = cause(e.Err, e.Kind)
	// err may say more around the client's error.
	return strings.Replace(err.Error(), e.Error(), short.Error(), 1)
}

// cause leaves out the errors on the way down that only repeat kind.
func cause(err, kind error) error {
	for {
		var e *btrlog.Error
		var m *meta.Error
		switch {
		case errors.As(err, &e) && e.Kind == kind:
			err = e.Err
		case errors.As(err, &m) && slices.Contains(plainKinds, m.Kind) && m.Err != nil:
			err = m.Err
		case m != nil && slices.Contains(plainKinds, m.Kind):
			return nil
		default:
			return err
		}
	}
}

// plainKinds are the kinds of the metadata's errors that the client's own kind says as well.
var plainKinds = []error{meta.ErrNotFound, meta.ErrExists, meta.ErrInvalid, meta.ErrFenced, meta.ErrUnavailable}

// advice says what to do about an error of the client.
func advice(err error) string {
	var h *hinted
	if errors.As(err, &h) {
		return h.hint
	}
	if errors.Is(err, objstore.ErrDenied) {
		return "the object store refuses it; check who may write there"
	}
	var e *btrlog.Error
	if !errors.As(err, &e) {
		return ""
	}
	switch e.Kind {
	case btrlog.ErrExists:
		return "choose another name"
	case btrlog.ErrFenced:
		return "another writer owns the log now; run the command again only if it is meant to take the log back"
	case btrlog.ErrUnavailable:
		silent := errors.Is(err, meta.ErrUnavailable) || errors.Is(err, meta.ErrUnknown) || errors.Is(err, context.DeadlineExceeded)
		switch {
		case len(e.Incompatible) == len(e.Missing) && len(e.Missing) > 0:
			return "" // what is wrong with each is said; to wait does not help
		case len(e.Replaced) > 0:
			return adviceOnReplaced(e)
		case strings.Contains(e.Error(), ": no-space: "): // as nodes say it; more of them would fill, too
			return "'btrlog cluster status' shows whose disk is full and why nothing is archived; run the command again when there is room"
		case len(e.Missing) > 0:
			return "start the missing nodes, then run the command again"
		case silent:
			return "run the command again when the nodes and the object store answer; 'btrlog cluster status' shows how they are"
		}
	case btrlog.ErrDataLoss:
		if e.Epoch != 0 { // on record
			return fmt.Sprintf("there is no way to get them; --from %d begins behind them", e.To+1)
		}
		return fmt.Sprintf("bring back the nodes that held them, or restore the objects: 'btrlog archive verify --deep %s' shows what is missing or damaged in the archive", e.Log)
	}
	return ""
}

// adviceOnReplaced is about nodes that run with other disks than the log knows. They need no start, and waiting does not help; how many others
// must answer before they can be adopted decides what does.
func adviceOnReplaced(e *btrlog.Error) string {
	var silent, pairs []string
	for _, n := range e.Missing {
		if !slices.Contains(e.Replaced, n) {
			silent = append(silent, n)
		}
	}
	for _, n := range e.Replaced {
		pairs = append(pairs, "--node "+n+"="+n)
	}
	adopt := fmt.Sprintf("'btrlog log replace %s %s' adopts what was replaced", e.Log, strings.Join(pairs, " "))
	if len(silent) > 0 {
		return "start " + strings.Join(silent, ", ") + "; then " + adopt
	}
	return "bring back one of the disks that the log knows of " + strings.Join(e.Replaced, ", ") + "; with enough of them " + adopt +
		"; if they are lost for good, see 'btrlog log recover --help'"
}

// noSuchLog says what to do about a log that is not there. Only a command that is there to use a log proposes to make it.
func noSuchLog(cmd *cobra.Command, err error) string {
	var e *btrlog.Error
	if !errors.As(err, &e) || e.Kind != btrlog.ErrNotFound || e.Log == "" || e.From != 0 {
		return ""
	}
	switch cmd.Name() {
	case "append", "cat", "export", "follow", "info":
		return fmt.Sprintf("'btrlog log list' shows the logs, 'btrlog log create %s' makes it", e.Log)
	case "delete", "fence", "trim", "replace", "recover", "ls", "verify": // the last two of the archive
		return "'btrlog log list' shows the logs"
	}
	return ""
}
