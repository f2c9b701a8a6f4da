package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/btrlog/btrlog/bench/load"
	"github.com/btrlog/btrlog/bench/peerlogs"
)

// Apache BookKeeper: ZooKeeper and three bookies, each a process of its own; ledgers with ensemble 3, write quorum 3, acknowledgement
// quorum 2. The set-ups are the files of ../../bookkeeper. The client is a program in Java, which appends asynchronously.

// fetchBookKeeper brings the jars and compiles the client, unless that was done before.
func fetchBookKeeper(ctx context.Context, o *options) error {
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("there is no %s", tool)
		}
	}
	dir := filepath.Join(o.cache, "bookkeeper")
	o.java = dir
	if _, err := os.Stat(filepath.Join(dir, "classes", "Peer.class")); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := peerlogs.BookKeeper.ReadDir("bookkeeper")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := peerlogs.BookKeeper.ReadFile("bookkeeper/" + f.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), text, 0o644); err != nil {
			return err
		}
	}
	for _, words := range [][]string{
		{"mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=" + filepath.Join(dir, "lib")},
		{"javac", "-cp", filepath.Join(dir, "lib", "*"), "-d", filepath.Join(dir, "classes"), "Peer.java"},
	} {
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(words, " "), err, out)
		}
	}
	return nil
}

func (o *options) javaArgs(heap string, words ...string) []string {
	return append([]string{"-Xmx" + heap, "-Dlog4j2.configurationFile=" + filepath.Join(o.java, "log4j2.xml"), "-cp",
		filepath.Join(o.java, "classes") + ":" + filepath.Join(o.java, "lib", "*")}, words...)
}

// bookieTime is what ZooKeeper and the bookies have to start.
const bookieTime = 2 * time.Minute

func startBookKeeper(ctx context.Context, o *options, dir, setup string) (*running, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bookieTime, errors.New("BookKeeper did not start in time"))
	defer cancel()
	r := &running{}
	ports := make([]int, 4)
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	zookeeper, err := o.fill("zoo.cfg", dir, dir, 0, ports[3])
	if err != nil {
		return nil, err
	}
	if err := r.helper(dir, "java", o.javaArgs("256m", "org.apache.zookeeper.server.ZooKeeperServerMain", zookeeper)...); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	if err := listens(ctx, r.helpers[0], ports[3]); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	for i, port := range ports[:3] {
		sub := filepath.Join(dir, fmt.Sprintf("b%d", i))
		for _, d := range []string{"journal", "journal0", "journal1", "ledgers"} {
			if err := os.MkdirAll(filepath.Join(sub, d), 0o755); err != nil {
				return nil, errors.Join(err, r.stop())
			}
		}
		conf, err := o.fill(setup+".conf", sub, sub, port, ports[3])
		if err != nil {
			return nil, errors.Join(err, r.stop())
		}
		if i == 0 {
			init := exec.CommandContext(ctx, "java", o.javaArgs("256m", "org.apache.bookkeeper.bookie.BookieShell", "-conf", conf, "initnewcluster")...)
			if out, err := init.CombinedOutput(); err != nil {
				return nil, errors.Join(fmt.Errorf("initnewcluster: %w\n%s", err, out), r.stop())
			}
		}
		if err := r.node(dir, "java", nil, o.javaArgs("1g", "org.apache.bookkeeper.server.Main", "--conf", conf)...); err != nil {
			return nil, errors.Join(err, r.stop())
		}
	}
	for i, port := range ports[:3] {
		if err := listens(ctx, r.nodes[i], port); err != nil {
			return nil, errors.Join(err, r.stop())
		}
	}
	r.kind = "bookkeeper"
	r.words = append([]string{"java"}, o.javaArgs("512m", "Peer", fmt.Sprintf("zk+hierarchical://127.0.0.1:%d/ledgers", ports[3]), strconv.FormatBool(setup == "busy"))...)
	return r, nil
}

// fill writes a configuration file of the tree with what is known here only.
func (o *options) fill(name, into, dir string, port, zookeeper int) (string, error) {
	text, err := peerlogs.BookKeeper.ReadFile("bookkeeper/" + name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(into, name)
	return path, os.WriteFile(path, []byte(strings.NewReplacer("@DIR@", dir, "@PORT@", strconv.Itoa(port), "@ZOOKEEPER@", strconv.Itoa(zookeeper)).Replace(string(text))), 0o644)
}

// listens waits until a process listens on a port.
func listens(ctx context.Context, p *load.Process, port int) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		c, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return c.Close()
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid)); err != nil || strings.Contains(string(stat), ") Z ") {
			return fmt.Errorf("process %d, which was to listen on port %d, has ended", p.Cmd.Process.Pid, port)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: nothing listens on port %d", context.Cause(ctx), port)
		}
	}
}

// bookkeeperTarget speaks with the client in Java; see ../../bookkeeper/Peer.java.
type bookkeeperTarget struct {
	p  *load.Process
	to *bufio.Writer

	mu      sync.Mutex
	pending map[uint64]load.Completion
	next    uint64
	kick    chan struct{} // there is something to flush
	opened  chan struct{}
	took    chan []time.Duration
	gone    chan struct{} // the client ended
}

func connectBookKeeper(_ context.Context, words []string) (load.Target, error) {
	p, err := load.Start(os.Stderr, "", nil, words[0], words[1:]...)
	if err != nil {
		return nil, err
	}
	t := &bookkeeperTarget{p: p, to: bufio.NewWriterSize(p.In(), 1<<16), pending: map[uint64]load.Completion{}, kick: make(chan struct{}, 1),
		opened: make(chan struct{}), took: make(chan []time.Duration), gone: make(chan struct{})}
	go t.receive()
	go t.flush()
	return t, nil
}

// flush sends what has gathered: while one write is under way, the next gathers.
func (t *bookkeeperTarget) flush() {
	for {
		select {
		case <-t.kick:
		case <-t.gone:
			return
		}
		t.mu.Lock()
		err := t.to.Flush()
		t.mu.Unlock()
		if err != nil {
			return // receive says so
		}
	}
}

func (t *bookkeeperTarget) send(words ...any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range words {
		if err := binary.Write(t.to, binary.BigEndian, w); err != nil {
			return err
		}
	}
	return t.to.Flush()
}

func (t *bookkeeperTarget) receive() {
	defer close(t.gone)
	in := t.p.Out()
	var head [13]byte
	for {
		kind, err := in.ReadByte()
		if err != nil {
			return
		}
		switch kind {
		case 'O':
			t.opened <- struct{}{}
		case 'D':
			if _, err := io.ReadFull(in, head[:12]); err != nil {
				return
			}
			id := binary.BigEndian.Uint64(head[:])
			t.mu.Lock()
			c := t.pending[id]
			delete(t.pending, id)
			t.mu.Unlock()
			var failed error
			if rc := int32(binary.BigEndian.Uint32(head[8:])); rc != 0 {
				failed = fmt.Errorf("BookKeeper's result %d", rc)
			}
			c.Done(failed)
		case 'C':
			if _, err := io.ReadFull(in, head[:4]); err != nil {
				return
			}
			all := make([]int64, binary.BigEndian.Uint32(head[:]))
			if err := binary.Read(in, binary.BigEndian, all); err != nil {
				return
			}
			took := make([]time.Duration, len(all))
			for i, ns := range all {
				took[i] = time.Duration(ns)
			}
			t.took <- took
		}
	}
}

var errGone = errors.New("BookKeeper's client ended")

func (t *bookkeeperTarget) Open(ctx context.Context, logs int) error {
	if err := t.send([]byte{'O'}, uint32(logs)); err != nil {
		return err
	}
	select {
	case <-t.opened:
		return nil
	case <-t.gone:
		return errGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *bookkeeperTarget) Append(log int, record []byte, c load.Completion) error {
	var head [17]byte
	t.mu.Lock()
	if len(t.pending) >= underWay {
		t.mu.Unlock()
		return load.ErrRefused
	}
	t.next++
	t.pending[t.next] = c
	head[0] = 'A'
	binary.BigEndian.PutUint32(head[1:], uint32(log))
	binary.BigEndian.PutUint64(head[5:], t.next)
	binary.BigEndian.PutUint32(head[13:], uint32(len(record)))
	_, err1 := t.to.Write(head[:])
	_, err2 := t.to.Write(record)
	t.mu.Unlock()
	select {
	case t.kick <- struct{}{}:
	default:
	}
	return errors.Join(err1, err2)
}

func (t *bookkeeperTarget) Closed(ctx context.Context, count int, record []byte) ([]time.Duration, error) {
	if err := t.send([]byte{'C'}, uint32(count), uint32(len(record))); err != nil {
		return nil, err
	}
	select {
	case took := <-t.took:
		return took, nil
	case <-t.gone:
		return nil, errGone
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (t *bookkeeperTarget) Close() error { t.p.Stop(); return nil }
