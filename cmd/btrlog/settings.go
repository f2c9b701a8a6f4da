package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Settings. A flag that says how a program runs, and not what one call does, is a setting: besides on the command line it can be given in the
// environment and in one file. Its key in the file is the flag's name, behind that of its command where the command has a flag of its own
// (timeout, node.listen), and its variable is the key in capitals (BTRLOG_TIMEOUT, BTRLOG_NODE_LISTEN). The flag outranks the variable, the
// variable the file, the file the default.

const (
	envPrefix  = "BTRLOG_"
	envConfig  = "BTRLOG_CONFIG"
	configName = "config"

	// keyMark and sourceMark are annotations of a flag: its key, and where its value comes from.
	keyMark    = "btrlog_key"
	sourceMark = "btrlog_source"

	// maxConfigBytes bounds what is read of a file that somebody named by mistake.
	maxConfigBytes = 1 << 20
)

// rank orders the places where a value comes from: the higher one counts.
type rank int

const (
	fromDefault rank = iota
	fromFile
	fromEnv
	fromFlag
)

// source is where the value of a setting comes from.
type source struct {
	rank  rank
	place string // as messages name it: --store, BTRLOG_STORE, or file:line
}

// configurable makes settings of the flags that are in the set now, and adds --config. Those in shared mean the same for every command that
// has them, so their keys stand alone; the others stand behind the section, if there is one.
func configurable(flags *pflag.FlagSet, section string, shared ...string) {
	flags.VisitAll(func(f *pflag.Flag) {
		key := f.Name
		if section != "" && !slices.Contains(shared, key) {
			key = section + "." + key
		}
		mark(f, keyMark, key)
	})
	flags.String(configName, "", "configuration `file` (environment: "+envConfig+"; default: the first of "+strings.Join(configPlaces(), " and ")+" that is there)")
}

func mark(f *pflag.Flag, name string, values ...string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[name] = values
}

func keyOf(f *pflag.Flag) string {
	if v := f.Annotations[keyMark]; len(v) == 1 {
		return v[0]
	}
	return ""
}

// variable is the environment's name of a key.
func variable(key string) string {
	return envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))
}

// configPlaces are the files that are looked for when none is named, for people.
func configPlaces() []string {
	return []string{"~/.config/btrlog/btrlog.conf", "/etc/btrlog/btrlog.conf"}
}

// configPath is the file to read, or "" for none. One that is named must be there.
func configPath(named string) (path string, must bool) {
	if named != "" {
		return named, true
	}
	if e := os.Getenv(envConfig); e != "" {
		return e, true
	}
	var places []string
	if dir, err := os.UserConfigDir(); err == nil { // without a home there is no file in it
		places = append(places, filepath.Join(dir, "btrlog", "btrlog.conf"))
	}
	for _, p := range append(places, configPlaces()[1]) {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			return p, false // one that cannot be read is reported, not passed over
		}
	}
	return "", false
}

// entry is one line of a configuration file.
type entry struct {
	key, value string
	line       int
}

// parseConfig reads lines of the form key = value. Empty lines, and what stands behind a '#' that begins a word, are skipped; a value that
// needs such a '#' or blanks at its ends is written in double quotes. Every error names its line.
func parseConfig(text string) ([]entry, error) {
	var out []entry
	first := map[string]int{}
	for i, line := range strings.Split(text, "\n") {
		n := i + 1
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !ok && line[0] == '[':
			return nil, fmt.Errorf("%d: there are no sections; a key is written whole, for example node.listen = 10.0.0.1:4460", n)
		case !ok || key == "":
			return nil, fmt.Errorf("%d: %q is not key = value", n, line)
		case first[key] != 0:
			return nil, fmt.Errorf("%d: %s is given twice, first in line %d", n, key, first[key])
		}
		first[key] = n
		value, err := unquoted(value)
		if err == nil && value == "" {
			err = errors.New("there is no value; leave the line out for the default")
		}
		if err != nil {
			return nil, fmt.Errorf("%d: %s: %w", n, key, err)
		}
		out = append(out, entry{key, value, n})
	}
	return out, nil
}

func unquoted(value string) (string, error) {
	if strings.HasPrefix(value, `"`) {
		quoted, err := strconv.QuotedPrefix(value)
		if rest := strings.TrimSpace(value[len(quoted):]); err != nil || (rest != "" && rest[0] != '#') {
			return "", fmt.Errorf("the quotes of %s do not end where the value does", value)
		}
		return strconv.Unquote(quoted)
	}
	if at := strings.Index(value, " #"); at >= 0 {
		value = value[:at]
	}
	if at := strings.Index(value, "\t#"); at >= 0 {
		value = value[:at]
	}
	if strings.HasPrefix(value, "#") {
		value = ""
	}
	return strings.TrimSpace(value), nil
}

// settings are all keys that there are, in the order of their names. Each has a flag of its own that belongs to no command, to try values on.
func settings() []*pflag.Flag {
	found := map[string]*pflag.Flag{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if key := keyOf(f); key != "" && found[key] == nil {
				found[key] = f
			}
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot())
	out := make([]*pflag.Flag, 0, len(found))
	for _, f := range found {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b *pflag.Flag) int {
		// Keys without a section first: they are what most files begin with.
		if as, bs := strings.Contains(keyOf(a), "."), strings.Contains(keyOf(b), "."); as != bs {
			if as {
				return 1
			}
			return -1
		}
		return strings.Compare(keyOf(a), keyOf(b))
	})
	return out
}

// config is a configuration file that was read and checked.
type config struct {
	path    string // "": there is none
	entries map[string]entry
}

func (c *config) place(e entry) string { return fmt.Sprintf("%s:%d", c.path, e.line) }

// readConfig reads the file. Every key in it must be one that there is, with a value that its flag takes, whichever command is running: a
// mistake must not wait for the day on which the command that it is for is started.
func readConfig(named string) (*config, error) {
	path, must := configPath(named)
	c := &config{path: path, entries: map[string]entry{}}
	if path == "" {
		return c, nil
	}
	text, err := readBounded(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !must: // gone meanwhile
		return &config{}, nil
	case err != nil:
		return nil, usagef("configuration: %w", err)
	}
	entries, err := parseConfig(text)
	if err != nil {
		return nil, usagef("%s:%w", path, err)
	}
	known := settings()
	for _, e := range entries {
		i := slices.IndexFunc(known, func(f *pflag.Flag) bool { return keyOf(f) == e.key })
		if i < 0 {
			return nil, usagef("%s: unknown key %q%s", c.place(e), e.key, meant(e.key, known))
		}
		if err := known[i].Value.Set(e.value); err != nil {
			return nil, usagef("%s: %s: %s", c.place(e), e.key, badValue(e.value, err))
		}
		c.entries[e.key] = e
	}
	return c, nil
}

func readBounded(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err == nil && len(text) > maxConfigBytes {
		err = fmt.Errorf("%s is longer than %s: it is no configuration file", path, humanBytes(maxConfigBytes))
	}
	return string(text), err
}

// badValue says of a flag's error what the command line would say of it.
func badValue(value string, err error) string {
	return fmt.Sprintf("invalid value %q: %s", value, plainFlagError(err.Error()))
}

// meant proposes the keys that a mistyped one may be.
func meant(typed string, known []*pflag.Flag) string {
	keys := make([]string, len(known))
	for i, f := range known {
		keys[i] = keyOf(f)
	}
	if near := nearest(typed, keys); len(near) > 0 {
		return "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return "; 'btrlog config template' prints those that there are"
}

// settle gives the settings of a command that are not on its command line the values of the environment and the file.
func settle(cmd *cobra.Command) error {
	flags := cmd.Flags()
	named := flags.Lookup(configName)
	if named == nil {
		return nil
	}
	c, err := readConfig(named.Value.String())
	if err != nil {
		return err
	}
	flags.VisitAll(func(f *pflag.Flag) {
		key := keyOf(f)
		if key == "" || err != nil {
			return
		}
		if f.Changed {
			remember(f, source{fromFlag, "--" + f.Name})
			return
		}
		value, from := c.lookup(key)
		if from.rank == fromDefault {
			return
		}
		if serr := f.Value.Set(value); serr != nil {
			err = usagef("%s: %s", from.place, badValue(value, serr))
			return
		}
		f.Changed = true // it is given, and what is given is not guessed
		remember(f, from)
	})
	return err
}

// lookup finds what environment and file say of a key.
func (c *config) lookup(key string) (string, source) {
	if v := os.Getenv(variable(key)); v != "" {
		return v, source{fromEnv, variable(key)}
	}
	if e, ok := c.entries[key]; ok {
		return e.value, source{fromFile, c.place(e)}
	}
	return "", source{}
}

func remember(f *pflag.Flag, s source) {
	mark(f, sourceMark, strconv.Itoa(int(s.rank)), s.place)
}

// sourceOf says where the value of a command's flag comes from, once settle has run.
func sourceOf(cmd *cobra.Command, flag string) source {
	f := cmd.Flags().Lookup(flag)
	if f == nil || len(f.Annotations[sourceMark]) != 2 {
		return source{}
	}
	r, _ := strconv.Atoi(f.Annotations[sourceMark][0]) // remember wrote it
	return source{rank(r), f.Annotations[sourceMark][1]}
}
