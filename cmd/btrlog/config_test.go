package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// shown is what 'config show' says of a key.
func shown(t *testing.T, env []string, key string, args ...string) (value, from string) {
	t.Helper()
	res := runEnv(t, env, "", append([]string{"config", "show", "--json"}, args...)...)
	if res.code != 0 {
		t.Fatalf("config show: code %d, stderr %q", res.code, res.err)
	}
	var got struct {
		Settings []struct{ Key, Value, From string }
	}
	if err := json.Unmarshal([]byte(res.out), &got); err != nil {
		t.Fatalf("%q: %v", clip(res.out), err)
	}
	for _, s := range got.Settings {
		if s.Key == key {
			return s.Value, s.From
		}
	}
	t.Fatalf("config show lacks %s", key)
	return "", ""
}

// A flag outranks the environment, the environment the file, the file the default; 'config show' tells which it was.
func TestConfigPrecedence(t *testing.T) {
	name := newLog(t)
	closed, nodes := closedPort(t), shared.server.nodes()
	file := writeFile(t, filepath.Join(t.TempDir(), "btrlog.conf"), "# where the cluster is\n\nnodes = "+nodes+"\ntimeout = 3s # short\n")
	for _, c := range []struct {
		what  string
		env   []string
		args  []string
		works bool
	}{
		{"the file", nil, []string{"--config", file}, true},
		{"the file that the environment names", []string{"BTRLOG_CONFIG=" + file}, nil, true},
		{"the environment before the file", []string{"BTRLOG_NODES=" + closed}, []string{"--config", file}, false},
		{"a flag before both", []string{"BTRLOG_NODES=" + closed}, []string{"--config", file, "--nodes", nodes}, true},
		{"the other setting of the environment before the file", []string{"BTRLOG_STORE=" + shared.server.Store}, []string{"--config", file}, true},
		{"no file", nil, nil, false},
	} {
		res := runEnv(t, c.env, "", append([]string{"log", "info", name}, c.args...)...)
		if ok := res.code == 0; ok != c.works {
			t.Errorf("%s: code %d, stderr %q", c.what, res.code, res.err)
		}
	}
	both := writeFile(t, filepath.Join(t.TempDir(), "both.conf"), "nodes = "+nodes+"\nstore = "+shared.server.Store+"\n")
	bad(t, run(t, "", "log", "list", "--config", both), 2, "store ("+both+":2) and nodes ("+both+":1) are given")

	for _, c := range []struct {
		env         []string
		args        []string
		value, from string
	}{
		{nil, nil, "10s", "default"},
		{nil, []string{"--config", file}, "3s", file + ":4"},
		{[]string{"BTRLOG_TIMEOUT=7s"}, []string{"--config", file}, "7s", "BTRLOG_TIMEOUT"},
	} {
		if value, from := shown(t, c.env, "timeout", c.args...); value != c.value || from != c.from {
			t.Errorf("config show %v with %v: timeout %s from %s, want %s from %s", c.args, c.env, value, from, c.value, c.from)
		}
	}
	if value, _ := shown(t, nil, "nodes"); value != "127.0.0.1:4460" {
		t.Errorf("without any setting the nodes are %q", value)
	}
	if value, _ := shown(t, []string{"BTRLOG_STORE=http://user:secret@host:1"}, "store"); strings.Contains(value, "secret") || !strings.Contains(value, "user") {
		t.Errorf("config show says store %q", value)
	}
}

// The first file of the search path is read, and only it.
func TestConfigSearchPath(t *testing.T) {
	name := newLog(t)
	home := t.TempDir()
	file := writeFile(t, filepath.Join(home, "btrlog", "btrlog.conf"), "nodes="+shared.server.nodes())
	env := []string{"BTRLOG_CONFIG=", "XDG_CONFIG_HOME=" + home, "HOME=" + home}
	if res := runEnv(t, env, "", "log", "info", name); res.code != 0 {
		t.Errorf("with the file in the user's directory: code %d, stderr %q", res.code, res.err)
	}
	if value, from := shown(t, env, "nodes"); value != shared.server.nodes() || from != file+":1" {
		t.Errorf("config show says nodes %s from %s", value, from)
	}
	writeFile(t, file, "nodes 1")
	bad(t, runEnv(t, env, "", "log", "info", name), 2, file+`:1: "nodes 1" is not key = value`)
	if res := runEnv(t, env, "", "version"); res.code != 0 { // it has no settings
		t.Errorf("version reads the file: code %d, stderr %q", res.code, res.err)
	}
}

// Every mistake in the file is refused by whatever command reads it, with its line; nothing is tried.
func TestConfigMistakes(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct{ text, want string }{
		{"nodse = 127.0.0.1:1\n", `:1: unknown key "nodse"; did you mean nodes?`},
		{"\n# x\nnode.listn = :1\n", `:3: unknown key "node.listn"; did you mean node.listen?`},
		{"colour = red\n", `:1: unknown key "colour"; 'btrlog config template' prints those that there are`},
		{"timeout = soon\n", `:1: timeout: invalid value "soon": `},
		{"node.shards = two\n", `:1: node.shards: invalid value "two": a whole number is needed`},
		{"node.segment-file = 5PB\n", `:1: node.segment-file: invalid value "5PB": "5PB" has no known unit`},
		{"timeout = 1s\nroot = a\ntimeout = 2s\n", ":3: timeout is given twice, first in line 1"},
		{"timeout =\n", ":1: timeout: there is no value"},
		{"timeout = # 1s\n", ":1: timeout: there is no value"},
		{"[node]\nlisten = :1\n", ":1: there are no sections; a key is written whole"},
		{`root = "a` + "\n", `:1: root: the quotes of "a do not end`},
		{`root = "a" b` + "\n", `:1: root: the quotes of "a" b do not end`},
		{strings.Repeat("#", 1<<20+1), "it is no configuration file"},
	} {
		file := writeFile(t, filepath.Join(dir, fmt.Sprintf("%d.conf", i)), c.text)
		for _, args := range [][]string{{"log", "list"}, {"nodes"}, {"node"}, {"dev"}, {"config", "show"}} {
			res := run(t, "", append(args, "--config", file)...)
			bad(t, res, 2, file, c.want)
			if res.out != "" {
				t.Errorf("%v prints %q", args, clip(res.out))
			}
		}
	}
	bad(t, run(t, "", "log", "list", "--config", filepath.Join(dir, "none")), 2, "configuration: open "+filepath.Join(dir, "none")+": no such file")
	bad(t, runEnv(t, []string{"BTRLOG_CONFIG=" + dir}, "", "log", "list"), 2, "configuration: read "+dir)
	bad(t, runEnv(t, []string{"BTRLOG_TIMEOUT=soon"}, "", "log", "list"), 2, `BTRLOG_TIMEOUT: invalid value "soon"`)
	bad(t, runEnv(t, []string{"BTRLOG_NODE_SHARDS=-x"}, "", "node"), 2, `BTRLOG_NODE_SHARDS: invalid value "-x": a whole number is needed`)
	bad(t, runEnv(t, []string{"BTRLOG_NODE_SHARDS=-x"}, "", "config", "show"), 2, "BTRLOG_NODE_SHARDS: invalid value")
}

// A node takes all its settings from file and environment.
func TestConfigOfNode(t *testing.T) {
	dir := t.TempDir()
	store := storeURL(t)
	file := writeFile(t, filepath.Join(dir, "n.conf"), "store = "+store+"\nnode.id = from-file\nnode.dir = \""+filepath.Join(dir, "n # 1")+
		"\"\nnode.listen = 127.0.0.1:0\nnode.segment-file = 32MiB\nnode.zone = a\n")
	cmd := command(t.Context(), "node")
	cmd.Env = append(cmd.Env, "BTRLOG_NODE_ID=from-env", "BTRLOG_CONFIG="+file)
	p, _ := nodeProcessOf(t, "from-env", cmd)
	for _, want := range []string{"directory " + filepath.Join(dir, "n # 1"), "zone a", "store " + store} {
		if line := p.out.String(); !strings.Contains(line, want) {
			t.Errorf("the ready line lacks %q: %s", want, line)
		}
	}
}

// Variables that look like ours are no mistake, but 'config show' tells of them.
func TestConfigStrangers(t *testing.T) {
	res := runEnv(t, []string{"BTRLOG_STOER=x", "BTRLOG_SERVICE_HOST=10.0.0.1"}, "", "config", "show")
	if res.code != 0 || !strings.Contains(res.out, "\nBTRLOG_STOER is in the environment and means nothing; did you mean BTRLOG_STORE?\n") ||
		!strings.Contains(res.out, "\nBTRLOG_SERVICE_HOST is in the environment and means nothing\n") {
		t.Errorf("config show: code %d, stderr %q\n%s", res.code, res.err, res.out)
	}
}

// The template is a file that is read as it is, and so is each of its lines that says a default.
func TestConfigTemplate(t *testing.T) {
	text := good(t, "", "config", "template")
	dir := t.TempDir()
	good(t, "", "config", "show", "--config", writeFile(t, filepath.Join(dir, "as-is"), text))
	var open strings.Builder
	keys := 0
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimPrefix(line, "#"), " = ")
		if !strings.HasPrefix(line, "#") || strings.HasPrefix(line, "# ") || !ok {
			continue
		}
		keys++
		if strings.TrimSpace(value) != "" {
			open.WriteString(key + " = " + value)
		}
	}
	good(t, "", "config", "show", "--config", writeFile(t, filepath.Join(dir, "open"), open.String()))
	if keys < 20 || strings.Count(open.String(), "\n") < 8 {
		t.Errorf("the template has %d keys, %d with a default:\n%s", keys, strings.Count(open.String(), "\n"), text)
	}
}
