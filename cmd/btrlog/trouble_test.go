package main_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Every wrong command line: the message, the exit code, and nothing on standard output.
func TestWrongCommandLines(t *testing.T) {
	for _, c := range []struct {
		args  string
		parts []string
	}{
		{"frobnicate", []string{`unknown command "frobnicate"`, "see 'btrlog --help'"}},
		{"lgo", []string{`unknown command "lgo"; did you mean log?; see`}},
		{"lt", []string{`unknown command "lt"; did you mean lst?; see`}},
		{"log in", []string{`unknown command "in"; did you mean info?; see`}},
		{"log appendd x", []string{`unknown command "appendd"; did you mean append?`, "see 'btrlog log --help'"}},
		{"--frob", []string{"unknown flag: --frob"}},
		{"log list --frob", []string{"unknown flag: --frob", "see 'btrlog log list --help'"}},
		{"log list x", []string{`unexpected argument "x"`}},
		{"log info", []string{"the log's name is missing"}},
		{"log info a b", []string{`unexpected argument "b" after the log's name "a"`}},
		{"log create", []string{"the log's name is missing"}},
		{"log create --n many x", []string{`invalid argument "many" for "--n" flag`}},
		{"log create --segment 5x x", []string{`invalid argument "5x" for "--segment" flag: "5x" is no size`}},
		{"log create --segment 5PB x", []string{`"5PB" has no known unit`}},
		{"log create --segment 99999999999GiB x", []string{`"99999999999GiB" is too large`}},
		{"log append --chunk 9MiB x", []string{"--chunk is 9 MiB; a record has at most 8 MiB"}},
		{"log append --chunk 4KiB --length-prefixed x", []string{"--chunk and --length-prefixed exclude each other"}},
		{"log cat --lines --json x", []string{"--lines, --length-prefixed and --json exclude each other"}},
		{"log cat --from 0 x", []string{"LSN 0 is before the first record"}},
		{"log cat --from 5 --to 4 x", []string{"--from 5 is behind --to 4"}},
		{"log cat --from -1 x", []string{`invalid argument "-1" for "--from" flag: a whole number, 0 or more, is needed; see`}},
		{"log cat --from abc x", []string{`invalid argument "abc" for "--from" flag: a whole number, 0 or more, is needed; see`}},
		{"log cat --from 99999999999999999999 x", []string{`for "--from" flag: the number is too large; see`}},
		{"log cat --lines=perhaps x", []string{`for "--lines" flag: true or false is needed; see`}},
		{"log append --chunk 0 x", []string{"--chunk is 0; "}},
		{"log append --chunk 0 --length-prefixed x", []string{"--chunk is 0; "}},
		{"log create --on n1,n1,n3 x", []string{"--on names n1 twice"}},
		{"log delete x", []string{`log "x" was not deleted`, "repeat the command with --yes"}},
		{"log trim x", []string{"--before is missing"}},
		{"log trim --before 0 x", []string{"LSN 0 is before the first record"}},
		{"log replace x", []string{"--node is missing: OLD=NEW"}},
		{"log replace --node n1 x", []string{`--node "n1" is not OLD=NEW`}},
		{"log replace --node n1= x", []string{`--node "n1=" is not OLD=NEW`}},
		{"log replace --node n1=n4,n1=n5 x", []string{"--node replaces n1 twice"}},
		{"log replace --node n1=n4 --node n2=n4 x", []string{"--node puts n4 in two places"}},
		{"nodes n1", []string{`unexpected argument "n1"`}},
		{"help frob", []string{`unknown command "frob"`}},
		{"help log apend", []string{`unknown command "apend"; did you mean append?`}},
		{"help log append x", []string{`btrlog log append has no command "x"`}},
		{"log list --store ./store", []string{`the store "./store" is no URL; write it as file:///`, "/store; see"}},
		{"log list --store file://./x", []string{`names the host "."`, "this one as file:///", "/x; see"}},
		{"log list --store file:x", []string{"this one as file:///", "/x; see"}},
		{"log list --store file://", []string{"has no path"}},
		{"log list --store file:///x?y=1", []string{"has something behind the path"}},
		{"log list --store gcs://bucket/key", []string{"the scheme gcs:// is written gs:// here", "s3://"}},
		{"log list --store gs:///key", []string{"names no bucket", "gs://bucket/prefix"}},
		{"log list --store s9://bucket", []string{`no backend for scheme "s9"`, "file:///"}},
		{"log list --store %zz", []string{"the store's URL is malformed"}},
		{"node --store az:///prefix", []string{"names no container", "az://container/prefix?account=name"}},
		{"node --store abfss://container", []string{"the scheme abfss:// is written az:// here"}},
		{"node --store s3:///prefix", []string{"names no bucket", "s3://bucket/prefix"}},
		{"node --store s9://bucket", []string{`no backend for scheme "s9"`}},
		{"node --store store", []string{`the store "store" is no URL; write it as file:///`}},
		{"log list --store file:///tmp/x --nodes 127.0.0.1:1", []string{"--store and --nodes are given"}},
		{"log list --nodes here", []string{`address "here" is not host:port`}},
		{"log list --nodes here:99999", []string{`address "here:99999" has no port number`}},
		{"log list --timeout 0s", []string{"--timeout is 0s; it must be positive"}},
		{"node", []string{"--store is missing", "file:///"}},
		{"node --store file:///tmp/x --listen 4460", []string{`--listen: address "4460" is not host:port`}},
		{"node --store file:///tmp/x --start-timeout 0s", []string{"--start-timeout is 0s; it must be positive"}},
		{"log create --retain-age 7d x", []string{"--retain-age", "7d", "write for example 500ms, 10s or 168h"}},
		{"log set x", []string{"nothing to change is given"}},
		{"log set --flush-age 0 x", []string{"--flush-age is 0"}},
		{"log set --retain-age -1h x", []string{"--retain-age is -1h0m0s"}},
		{"cluster retire", []string{"the node's name is missing"}},
		{"node x", []string{`unexpected argument "x"`}},
		{"dev --nodes 0", []string{"--nodes is 0"}},
		{"dev --nodes 1000000", []string{"--nodes is 1000000"}},
		{"dev --listen :4460", []string{"--listen :4460 is every address"}},
		{"dev --listen 127.0.0.1:65535", []string{"leaves no room for the ports"}},
		{"completion", []string{"the shell's name is missing"}},
		{"completion tcsh", []string{`unknown shell "tcsh"`}},
		{"version 1", []string{`unexpected argument "1"`}},
	} {
		t.Run(c.args, func(t *testing.T) {
			res := run(t, "", strings.Fields(c.args)...)
			bad(t, res, 2, append(c.parts, "; see 'btrlog")...)
			if res.out != "" {
				t.Errorf("standard output has %q", clip(res.out))
			}
		})
	}
	for first, args := range map[string][]string{"\nTo begin:\n  dev ": nil, "\nRecords:\n  append ": {"log"}, "\nAvailable Commands:\n  bench ": {"lst"}} {
		res := run(t, "", args...)
		if res.code != 2 || res.out != "" || !strings.Contains(res.err, first) {
			t.Errorf("btrlog %v without a verb: code %d, stdout %q, stderr %q", args, res.code, res.out, clip(res.err))
		}
	}
}

func TestLogErrors(t *testing.T) {
	name := newLog(t)
	good(t, "a\nb\n", onShared(t, "append", name)...)
	for _, c := range []struct {
		code  int
		args  []string
		parts []string
	}{
		{1, []string{"info", "nope"}, []string{`log "nope": not found; 'btrlog log list' shows the logs, 'btrlog log create nope' makes it`}},
		{1, []string{"fence", "nope"}, []string{`fence of log "nope": not found`}},
		{1, []string{"append", "nope"}, []string{`append of log "nope": not found; `, "'btrlog log create nope' makes it"}},
		{1, []string{"cat", "nope"}, []string{`log "nope": not found; `, "'btrlog log create nope' makes it"}},
		{1, []string{"delete", "--yes", "nope"}, []string{`log "nope": not found; 'btrlog log list' shows the logs` + "\n"}},
		{1, []string{"trim", "--before", "2", "nope"}, []string{`log "nope": not found; 'btrlog log list' shows the logs` + "\n"}},
		{1, []string{"replace", "--node", "n1=n1", "nope"}, []string{`log "nope": not found; 'btrlog log list' shows the logs` + "\n"}},
		{2, []string{"replace", "--node", "n9=n1", name}, []string{`"n9" is not one of the log's`}},
		{2, []string{"trim", "--before", "4", name}, []string{"cannot trim below LSN 4: the log is committed up to 2"}},
		{1, []string{"create", name}, []string{`log "` + name + `": exists already; choose another name`}},
		{2, []string{"create", "-x", "a"}, []string{"unknown shorthand flag"}},
		{2, []string{"create", "a/b"}, []string{`name "a/b" contains '/'`}},
		{2, []string{"create", ""}, []string{"has 0 bytes"}},
		{2, []string{"create", ".a"}, []string{"begins or ends with '.'"}},
		{2, []string{"create", strings.Repeat("a", 129)}, []string{"has 129 bytes; 1 to 128 are allowed"}},
		{2, []string{"create", "--qw", "4", "x"}, []string{"write quorum is 4 of 3 nodes"}},
		{2, []string{"create", "--durability", "hope", "x"}, []string{`durability is "hope"`}},
		{1, []string{"create", "--n", "5", "x"}, []string{"5 nodes are needed, 3 are registered and active", "start more nodes"}},
		{1, []string{"cat", "--from", "3", name}, []string{`log "` + name + `" ends at LSN 2; --from 3 is beyond it`}},
		{1, []string{"cat", "--from", "18446744073709551615", name}, []string{"ends at LSN 2"}},
		{1, []string{"cat", "--to", "3", name}, []string{`log "` + name + `" ends at LSN 2; --to 3 is beyond it`}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			res := run(t, "lost\n", onShared(t, c.args...)...)
			bad(t, res, c.code, c.parts...)
			if res.out != "" {
				t.Errorf("standard output has %q", clip(res.out))
			}
		})
	}
	if n := tail(t, name); n != 2 {
		t.Errorf("the log ends at LSN %d after refused commands, want 2", n)
	}
}

// Where the cluster is: flag before environment, and no guess when two places are named.
func TestWhereTheClusterIs(t *testing.T) {
	name := newLog(t)
	nodes, store := "BTRLOG_NODES="+shared.server.nodes(), "BTRLOG_STORE="+shared.server.Store
	closed := closedPort(t)
	for _, env := range [][]string{{nodes}, {store}} {
		if res := runEnv(t, env, "", "log", "info", name); res.code != 0 || !strings.Contains(res.out, name) {
			t.Errorf("with %s: code %d, stderr %q", env, res.code, res.err)
		}
	}
	if res := runEnv(t, []string{"BTRLOG_NODES=" + closed}, "", "log", "--store", shared.server.Store, "info", name); res.code != 0 {
		t.Errorf("a flag does not outrank the environment: code %d, stderr %q", res.code, res.err)
	}
	// One node that answers is enough.
	if res := run(t, "", "log", "--nodes", closed+","+shared.server.Addresses[0], "info", name); res.code != 0 {
		t.Errorf("with one of two nodes: code %d, stderr %q", res.code, res.err)
	}
	bad(t, runEnv(t, []string{nodes, store}, "", "log", "list"), 2, "BTRLOG_STORE and BTRLOG_NODES are set")
	bad(t, runEnv(t, []string{"BTRLOG_NODES=here"}, "", "log", "list"), 2, `address "here"`)
	bad(t, run(t, "", "log", "--nodes", closed, "--timeout", "2s", "list"), 1, "connect: unavailable", closed, "connection refused", "is the cluster running? 'btrlog dev' starts one")
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	bad(t, run(t, "", "log", "--nodes", strings.TrimPrefix(web.URL, "http://"), "--timeout", "5s", "list"), 1, "connect: unavailable", "what answers there is no log node")
	bad(t, runEnv(t, []string{"BTRLOG_STORE=s9://bucket"}, "", "log", "list"), 2, `no backend for scheme "s9"`)
	empty := t.TempDir()
	for _, args := range [][]string{{"log", "list"}, {"log", "cat", "x"}, {"log", "append", "x"}, {"log", "info", "x"}, {"log", "delete", "--yes", "x"}, {"nodes"}} {
		bad(t, run(t, "lost\n", append(args, "--store", "file://"+empty)...), 1, "there is no object store in "+empty, "mounted", "The first node of a cluster makes its store")
	}
	// A mount point without its file system stays empty.
	if names, err := os.ReadDir(empty); err != nil || len(names) > 0 {
		t.Errorf("commands that only use a store left %v in an empty directory: %v", names, err)
	}
	bad(t, run(t, "", "log", "--store", shared.server.Store, "--root", "elsewhere", "list"), 1, `there is no cluster at root "elsewhere" of `)
	typo := filepath.Join(t.TempDir(), "typo")
	bad(t, run(t, "", "log", "--store", "file://"+typo, "list"), 1, "there is no object store in "+typo)
	if _, err := os.Stat(typo); !os.IsNotExist(err) {
		t.Errorf("a mistyped store was made: %v", err)
	}
	bad(t, run(t, "", "log", "--store", "file:///dev/null/store", "list"), 1, "/dev/null")
}

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	c := mustCluster(t, dir, "--nodes", "1")
	nodes := c.nodes()
	if len(c.Nodes) != 1 || c.Nodes[0].Node != "n1" || len(c.Nodes[0].Incarnation) != 16 || c.Nodes[0].Durability == "" || c.Nodes[0].FileSystem == "" {
		t.Errorf("dev says %+v", c.Nodes)
	}
	good(t, "", "log", "--nodes", nodes, "create", "--n", "1", "kept")
	good(t, "before\n", "log", "--nodes", nodes, "append", "kept")

	// A second one on the directory is refused, and harms nothing.
	bad(t, run(t, "", "dev", "--dir", dir, "--listen", "127.0.0.1:0"), 1, dir+" is in use by another 'btrlog dev'", "--dir")
	// So is a node on the directory of one.
	bad(t, run(t, "", "node", "--id", "n1", "--dir", filepath.Join(dir, "n1"), "--store", c.Store, "--listen", "127.0.0.1:0"), 1, "is in use by another process")
	if res := c.end(syscall.SIGINT); res.code != 0 || res.err != "" {
		t.Fatalf("dev ended with code %d after SIGINT, stderr %q", res.code, res.err)
	}

	// The number of nodes is the directory's, unless it is to grow.
	c2 := mustCluster(t, dir)
	if len(c2.Nodes) != 1 || c2.Nodes[0].Incarnation != c.Nodes[0].Incarnation {
		t.Errorf("after a restart dev says %+v, before %+v", c2.Nodes, c.Nodes)
	}
	good(t, "after\n", "log", "--nodes", c2.nodes(), "append", "kept")
	if got := good(t, "", "log", "--nodes", c2.nodes(), "cat", "--lines", "kept"); got != "before\nafter\n" {
		t.Errorf("after a restart the log holds %q", got)
	}
	if res := c2.end(syscall.SIGKILL); res.signal != syscall.SIGKILL {
		t.Fatalf("dev ended with %+v after SIGKILL", res)
	}
	c3 := mustCluster(t, dir, "--nodes", "3")
	if got := good(t, "", "log", "--nodes", c3.nodes(), "cat", "--lines", "kept"); got != "before\nafter\n" {
		t.Errorf("after SIGKILL the log holds %q", got)
	}
	good(t, "", "log", "--nodes", c3.nodes(), "create", "three")
	good(t, "x\n", "log", "--nodes", c3.nodes(), "append", "three")
	if res := c3.end(syscall.SIGTERM); res.code != 0 {
		t.Fatalf("dev ended with code %d after SIGTERM, stderr %q", res.code, res.err)
	}
	bad(t, run(t, "", "dev", "--dir", dir, "--nodes", "2", "--listen", "127.0.0.1:0"), 1, "holds 3 nodes, --nodes is 2", "leave --nodes out")
}

func TestDevRefusals(t *testing.T) {
	t.Parallel()
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bad(t, run(t, "", "dev", "--dir", foreign), 1, "holds thesis.txt, which is not of a development cluster", "--dir")
	if entries, _ := os.ReadDir(foreign); len(entries) != 1 {
		t.Errorf("dev left something in a directory that it refused: %v", entries)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := filepath.Join(t.TempDir(), "dev")
	for range 2 { // a refusal leaves the directory usable for the next try
		bad(t, run(t, "", "dev", "--dir", dir, "--nodes", "1", "--listen", l.Addr().String()), 1, "node n1: ", l.Addr().String(), "address already in use", "choose another with --listen")
	}
	c := mustCluster(t, dir)
	if res := c.end(syscall.SIGTERM); res.code != 0 {
		t.Errorf("dev ended with code %d, stderr %q", res.code, res.err)
	}
	bad(t, run(t, "", "dev", "--dir", dir, "--listen", "192.0.2.1:4460"), 1, "--listen must name an address of this host")
}

// What a person reads: how to connect.
func TestDevSaysHowToConnect(t *testing.T) {
	p := mustStart(t, command(context.Background(), "dev", "--dir", filepath.Join(t.TempDir(), "dev"), "--nodes", "1", "--listen", "127.0.0.1:0"))
	eventually(t, "dev is ready", func() bool { return strings.Contains(p.out.String(), "Ctrl-C") || ended(p) })
	text := p.out.String()
	var address string
	if _, err := fmt.Sscanf(text[strings.Index(text, "n1 at ")+len("n1 at "):], "%s", &address); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	address = strings.TrimSuffix(address, ",")
	for _, want := range []string{"btrlog dev: 1 node ready in ", "durability ", "file system ", "incarnation ", "btrlog log --nodes " + address + " create",
		`btrlog.Connect(ctx, btrlog.Config{Nodes: []string{"` + address + `"}})`} {
		if !strings.Contains(text, want) {
			t.Errorf("dev lacks %q:\n%s", want, text)
		}
	}
	if res := p.end(syscall.SIGTERM); res.code != 0 || res.err != "" {
		t.Errorf("dev ended with code %d, stderr %q", res.code, res.err)
	}
}

func ended(p *process) bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// A reader that goes away ends cat quietly.
func TestBrokenPipe(t *testing.T) {
	name := newLog(t)
	good(t, strings.Repeat(strings.Repeat("y", 1023)+"\n", 4096), onShared(t, "append", name)...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(context.Background(), onShared(t, "cat", "--lines", name)...)
	cmd.Stdout = w
	p := mustStart(t, cmd)
	w.Close()
	line, err := bufio.NewReader(io.LimitReader(r, 1024)).ReadString('\n')
	if err != nil || len(line) != 1024 {
		t.Fatalf("the first line has %d bytes, %v", len(line), err)
	}
	r.Close()
	if res := p.wait(); res.err != "" || (res.signal != syscall.SIGPIPE && res.code != 0) {
		t.Errorf("cat into a broken pipe: %+v", res)
	}
}

// Ctrl-C at cat whose output nobody takes: it must not hang, and says how far it came.
func TestInterruptedCat(t *testing.T) {
	name := newLog(t)
	good(t, strings.Repeat(strings.Repeat("y", 1023)+"\n", 4096), onShared(t, "append", name)...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := command(context.Background(), onShared(t, "cat", name)...)
	cmd.Stdout = w
	p := mustStart(t, cmd)
	w.Close()
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	bad(t, p.end(syscall.SIGINT), 1, "interrupted while nobody reads the output; nothing was printed")
}

// Ctrl-C at append: what was read is committed, and the command says so.
func TestInterruptedAppend(t *testing.T) {
	name := newLog(t)
	cmd := command(context.Background(), onShared(t, "append", name)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := mustStart(t, cmd)
	if _, err := in.Write([]byte("a\nb\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two records are committed", func() bool { return tail(t, name) == 2 })
	res := p.end(syscall.SIGINT)
	bad(t, res, 1, "btrlog: interrupted; committed: LSN 1..2; nothing else was appended")
	if res.out != "" {
		t.Errorf("standard output has %q", res.out)
	}
	// The log was handed over in order: the next one finds it closed and goes on.
	if got := good(t, "c\n", onShared(t, "append", name)...); got != "appended 1 record, LSN 3, committed\n" {
		t.Errorf("the next append says %q", got)
	}
}

// Another writer takes the log: the older append says what is certain, and nothing of it is missing.
func TestFencedAppend(t *testing.T) {
	name := newLog(t)
	cmd := command(context.Background(), onShared(t, "append", name)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := mustStart(t, cmd)
	if _, err := in.Write([]byte("mine\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the record is committed", func() bool { return tail(t, name) == 1 })
	good(t, "other\n", onShared(t, "append", name)...)
	go func() { // until the command refuses more
		for {
			if _, err := in.Write([]byte("late\n")); err != nil {
				return
			}
		}
	}()
	res := p.wait()
	bad(t, res, 1, `log "`+name+`": fenced by a newer writer`, "committed: LSN 1", "run the command again only if")
	if got := good(t, "", onShared(t, "cat", "--lines", name)...); got != "mine\nother\n" {
		t.Errorf("the log holds %q", clip(got))
	}
}
