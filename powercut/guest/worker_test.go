package guest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// workerProcess in the environment makes the test's binary a worker.
const workerProcess = "POWERCUT_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerProcess) == "" {
		os.Exit(m.Run())
	}
	if err := Worker(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tell runs a worker against a host that listens here, and kills it when enough acknowledgements have come.
func tell(t *testing.T, dir, mode, style string, run, acks int) (seen []Event) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	if err := lis.(*net.TCPListener).SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-host", lis.Addr().String(), "-dir", dir, "-mode", mode, "-style", style, "-run", strconv.Itoa(run))
	cmd.Env = append(os.Environ(), workerProcess+"=1")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	c, err := lis.Accept()
	if err != nil {
		t.Fatalf("the worker does not come: %v", err)
	}
	defer c.Close()
	r := json.NewDecoder(bufio.NewReader(c))
	for acks > 0 {
		var e Event
		if r.Decode(&e) != nil {
			break
		}
		seen = append(seen, e)
		if e.Kind == "ack" {
			acks--
		}
	}
	return seen
}

// What a worker acknowledged, the next one tells, in every mode and style; and each goes on where the last one ended.
func TestWorkerTellsWhatIsThere(t *testing.T) {
	for _, mode := range []string{"direct", "buffered"} {
		dir := t.TempDir()
		for run, style := range []string{StylePipeline, StyleCommit, StyleSoft, ""} {
			acked := make(map[int]uint64) // end by stream
			for _, e := range tell(t, dir, mode, style, run+1, 300) {
				if e.Kind == "failed" {
					t.Fatalf("%s, %s: %s", mode, style, e.Text)
				}
				if e.Kind == "ack" {
					acked[e.Stream] = max(acked[e.Stream], e.To)
				}
			}
			if style != "" && len(acked) != WorkerStreams {
				t.Fatalf("%s, %s: acknowledgements of %d streams", mode, style, len(acked))
			}
			there := make(map[int]uint64)
			for _, e := range tell(t, dir, mode, "", 0, 1) {
				switch {
				case e.Kind == "failed":
					t.Fatalf("%s, after %s: %s", mode, style, e.Text)
				case e.Kind == "record" && e.From != there[e.Stream]+1 && there[e.Stream] > 0:
					t.Fatalf("%s, after %s: stream %d has a hole in front of %d", mode, style, e.Stream, e.From)
				case e.Kind == "record":
					there[e.Stream] = e.From
				}
			}
			for stream, end := range acked {
				if there[stream]+1 < end {
					t.Fatalf("%s, after %s: stream %d ends at %d, acknowledged is up to %d", mode, style, stream, there[stream], end-1)
				}
			}
		}
	}
}

// Payloads differ in tag and number, and say what they are.
func TestPayload(t *testing.T) {
	seen := make(map[string]bool)
	for tag := range uint64(20) {
		for n := range uint64(200) {
			p := Payload(tag, n)
			if len(p) < 16 || len(p) > 4096 || seen[string(p)] {
				t.Fatalf("payload %d of %d has %d bytes, seen before: %v", n, tag, len(p), seen[string(p)])
			}
			seen[string(p)] = true
		}
	}
	tag := Tag(5, 2, 1000, 1003)
	if run, batch, first := TagRun(tag); run != 5 || batch != 3 || first != 1000 {
		t.Fatalf("tag %x is of run %d, %d records from %d", tag, run, batch, first)
	}
}
