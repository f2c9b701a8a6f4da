package main

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const configLong = `Show the configuration, or print a file to begin with.

What says how the program runs, and not what one call does, can be given in three ways. The first one that is there counts:

  a flag              btrlog node --listen 10.0.0.1:4460
  the environment     BTRLOG_NODE_LISTEN=10.0.0.1:4460
  the file            node.listen = 10.0.0.1:4460

One file is read: that of --config, else that of BTRLOG_CONFIG, else the first of ~/.config/btrlog/btrlog.conf and
/etc/btrlog/btrlog.conf that is there. It has one key = value in each line; a '#' begins a comment; a list has commas between its parts;
quotes are only needed around a value with a '#' or with blanks at its ends. A key that does not exist, a key that is given twice and a value
that its flag would not take are refused, with the line, by every command that reads the file.`

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the configuration and where it comes from",
		Long:  configLong,
		Example: `  btrlog config show
  btrlog config template > ~/.config/btrlog/btrlog.conf`,
	}
	group(cmd)
	cmd.AddCommand(configShow(), configTemplate())
	return cmd
}

// setting is a key with its value, as 'config show' prints it.
type setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// From is "default", the environment variable, or file:line.
	From string `json:"from"`
}

func configShow() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show every setting, its value, and where it comes from",
		Long: `Show every setting with the value that it has without a flag, and where that comes from: a line of the configuration file, a variable of the
environment, or the default. Variables that begin with BTRLOG_ and mean nothing are named below: they may be mistyped.`,
		Example: `  btrlog config show
  btrlog config show --json | jq -r '.settings[] | select(.from != "default") | .key'`,
		Args: noArgs,
	}
	configurable(cmd.Flags(), "") // it has no settings of its own, but reads the file
	jsonFlag(cmd, &asJSON, "one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := readConfig(cmd.Flags().Lookup(configName).Value.String())
		if err != nil {
			return err
		}
		known := settings()
		list := make([]setting, 0, len(known))
		for _, f := range known {
			value, from := c.lookup(keyOf(f))
			if from.rank == fromDefault {
				value, from.place = plainDefault(f), "default"
			} else if err := f.Value.Set(value); err != nil {
				return usagef("%s: %s", from.place, badValue(value, err))
			}
			list = append(list, setting{keyOf(f), redacted(keyOf(f), value), from.place})
		}
		assumeNodes(list)
		return printSettings(cmd.OutOrStdout(), c.path, list, strangers(known), asJSON)
	}
	return cmd
}

// assumeNodes fills in the nodes that are asked when no setting says where the cluster is.
func assumeNodes(list []setting) {
	nodes := slices.IndexFunc(list, func(s setting) bool { return s.Key == "nodes" })
	store := slices.IndexFunc(list, func(s setting) bool { return s.Key == "store" })
	if list[nodes].Value == "" && list[store].Value == "" {
		list[nodes].Value = defaultListen
	}
}

func printSettings(w io.Writer, path string, list []setting, strange []string, asJSON bool) error {
	if asJSON {
		return printJSON(w, struct {
			File    string    `json:"file,omitempty"`
			Set     []setting `json:"settings"`
			Strange []string  `json:"unknown_environment"`
		}{path, list, append([]string{}, strange...)})
	}
	rows := [][]string{{"KEY", "VALUE", "FROM"}}
	for _, s := range list {
		rows = append(rows, []string{s.Key, orDash(s.Value), s.From})
	}
	if err := printRows(w, rows); err != nil {
		return err
	}
	for _, s := range strange {
		if _, err := fmt.Fprintln(w, s); err != nil {
			return err
		}
	}
	return nil
}

// plainDefault is the value of a flag that nobody gave, "" where the program finds it at run time.
func plainDefault(f *pflag.Flag) string {
	switch f.DefValue {
	case "[]", "0", "0s":
		return ""
	}
	return f.DefValue
}

// redacted hides a password in a store's URL: what is shown may end up in a ticket.
func redacted(key, value string) string {
	if key != "store" {
		return value
	}
	if u, err := url.Parse(value); err == nil {
		return u.Redacted()
	}
	return value
}

// strangers names the variables of the environment that look like ours and are not. They are no error: whoever starts a container sets
// variables of his own, and some of them begin with the name of a service.
func strangers(known []*pflag.Flag) []string {
	var variables []string
	for _, f := range known {
		variables = append(variables, variable(keyOf(f)))
	}
	variables = append(variables, envConfig)
	var out []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, envPrefix) || slices.Contains(variables, name) {
			continue
		}
		note := fmt.Sprintf("%s is in the environment and means nothing", name)
		if near := nearest(name, variables); len(near) > 0 {
			note += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		out = append(out, note)
	}
	slices.Sort(out)
	return out
}

func configTemplate() *cobra.Command {
	return &cobra.Command{
		Use:   "template",
		Short: "Print a configuration file with every key, its meaning and its default",
		Long:  "Print a configuration file with every key, its meaning and its default. All of it is commented out: remove the '#' before what is to be changed.",
		Example: `  btrlog config template > btrlog.conf
  btrlog node --config btrlog.conf`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return writeTemplate(cmd.OutOrStdout())
		},
	}
}

func writeTemplate(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Configuration of btrlog: key = value. A flag and the environment outrank it.\n")
	for _, f := range settings() {
		key := keyOf(f)
		usage := f.Usage
		if at := strings.Index(usage, " (environment: "); at >= 0 {
			usage = usage[:at] // the line says it for all of them
		}
		fmt.Fprintf(&b, "\n# %s\n# Flag --%s, environment %s.\n#%s = %s\n", usage, f.Name, variable(key), key, plainDefault(f))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
