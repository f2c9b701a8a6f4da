package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

// An export is a header and then records; docs/FORMAT-EXPORT.md draws it. It is read without a cluster, and one that was cut is
// continued behind its last whole record.
const (
	exportMagic      = "BTRLGEXP"
	exportVersion    = 1
	exportHeadBytes  = 24
	exportFrameBytes = 24
	exportEnd        = uint32(0xffffffff) // length of the frame behind the last record
)

var exportCRC = crc32.MakeTable(crc32.Castagnoli)

func exportHead(id btrlog.LogID) []byte {
	b := append(make([]byte, 0, exportHeadBytes), exportMagic...)
	b = binary.LittleEndian.AppendUint16(b, exportVersion)
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(id))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, exportCRC))
}

// appendExport appends the frame of a record, or with length exportEnd the end behind LSN lsn.
func appendExport(b []byte, lsn btrlog.LSN, epoch btrlog.Epoch, length uint32, data []byte) []byte {
	from := len(b)
	b = binary.LittleEndian.AppendUint64(b, uint64(lsn))
	b = binary.LittleEndian.AppendUint64(b, uint64(epoch))
	b = binary.LittleEndian.AppendUint32(b, length)
	sum := crc32.Update(crc32.Checksum(b[from:], exportCRC), exportCRC, data)
	return append(binary.LittleEndian.AppendUint32(b, sum), data...)
}

// exportScan is what an export holds.
type exportScan struct {
	ID       btrlog.LogID
	Records  int64
	Bytes    int64 // of records
	Last     btrlog.LSN
	Whole    bool  // it ends with its end
	Good     int64 // bytes of the file up to the last whole record
	LastGood error // why what follows is none; nil: the file ends there
}

var errNoExport = errors.New("no export of a log")

// readExport reads an export and calls visit for each record, whose data is valid during the call. What is behind the last whole record
// is told in the result, not as an error: a file that is still written, or was cut, ends like that.
func readExport(r io.Reader, visit func(btrlog.Record) error) (s exportScan, err error) {
	in := bufio.NewReaderSize(r, 1<<20)
	var head [exportHeadBytes]byte
	if _, err := io.ReadFull(in, head[:]); err != nil || string(head[:8]) != exportMagic || crc32.Checksum(head[:20], exportCRC) != binary.LittleEndian.Uint32(head[20:]) {
		return s, errNoExport
	}
	if v := binary.LittleEndian.Uint16(head[8:]); v != exportVersion {
		return s, fmt.Errorf("the export has format version %d, this program reads %d", v, exportVersion)
	}
	s.ID, s.Good = btrlog.LogID(binary.LittleEndian.Uint64(head[12:])), exportHeadBytes
	var frame [exportFrameBytes]byte
	var data []byte
	for {
		if _, err := io.ReadFull(in, frame[:]); err != nil {
			if err != io.EOF {
				s.LastGood = errors.New("it ends within a record")
			}
			return s, nil
		}
		lsn, n := btrlog.LSN(binary.LittleEndian.Uint64(frame[:])), binary.LittleEndian.Uint32(frame[16:])
		end := n == exportEnd
		if end {
			n = 0
		}
		if n > btrlog.MaxRecordBytes {
			s.LastGood = fmt.Errorf("damaged behind LSN %d", s.Last)
			return s, nil
		}
		if cap(data) < int(n) {
			data = make([]byte, n)
		}
		data = data[:n]
		if _, err := io.ReadFull(in, data); err != nil {
			s.LastGood = errors.New("it ends within a record")
			return s, nil
		}
		sum := crc32.Update(crc32.Checksum(frame[:20], exportCRC), exportCRC, data)
		if sum != binary.LittleEndian.Uint32(frame[20:]) || s.Records > 0 && !end && lsn <= s.Last {
			s.LastGood = fmt.Errorf("damaged behind LSN %d", s.Last)
			return s, nil
		}
		if end {
			// Another export behind this one, say: who takes only the first must not think that he has all.
			if _, err := in.ReadByte(); err != io.EOF {
				s.LastGood = errors.New("something follows its end, which is no part of it")
				return s, nil
			}
			s.Whole = true
			return s, nil
		}
		if visit != nil {
			if err := visit(btrlog.Record{LSN: lsn, Epoch: btrlog.Epoch(binary.LittleEndian.Uint64(frame[8:])), Data: data}); err != nil {
				return s, err
			}
		}
		s.Records++
		s.Bytes += int64(n)
		s.Last = lsn
		s.Good += exportFrameBytes + int64(n)
	}
}

const logExportLong = `Copy the committed records of a log, with their LSNs and epochs, into a file that can be read without the cluster: by 'btrlog log
export --read', or by any program, see docs/FORMAT-EXPORT.md. Every record has a checksum, and the end is marked, so a cut is seen.

The range is checked first, as by 'btrlog log cat'. Without --output the export goes to standard output. With --resume an export to --output that was cut is
checked, and goes on behind its last whole record; what is behind that is cut off. A file that is there is not replaced otherwise.`

type exportFlags struct {
	cat            catFlags
	output         string
	resume, asJSON bool
	read           string
}

func logExport(c *connection) *cobra.Command {
	var o exportFlags
	cmd := &cobra.Command{
		Use:   "export NAME",
		Short: "Copy the records of a log into a file",
		Long:  logExportLong,
		Example: `  btrlog log export --output orders.export orders
  btrlog log export --output orders.export --resume orders
  btrlog log export --from 1000 --to 1999 orders | gzip > part.gz
  btrlog log export --read orders.export | wc -c`,
		Args: atMostOne("the log's name"), ValidArgsFunction: c.completeName,
	}
	f := cmd.Flags()
	f.Uint64Var(&o.cat.from, "from", 0, "LSN of the first record (default: the first one that is not trimmed)")
	f.Uint64Var(&o.cat.to, "to", 0, "LSN of the last record (default: the tail)")
	f.StringVar(&o.output, "output", "", "file to write; it must not be there, unless --resume is given")
	f.BoolVar(&o.resume, "resume", false, "go on with the export in --output")
	f.StringVar(&o.read, "read", "", "check this export and print its records as 'btrlog log cat' does; with --json what it holds. No log is named")
	jsonFlag(cmd, &o.asJSON, "what was exported as one JSON object; it needs --output, or --read")
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		return o.run(ctx, cmd, client, args[0])
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case o.read != "" && (len(args) > 0 || o.output != "" || o.resume):
			return usagef("--read takes neither a log, nor --output, nor --resume")
		case o.read != "":
			return o.show(cmd)
		case len(args) == 0:
			return usagef("the log's name is missing")
		case o.resume && o.output == "":
			return usagef("--resume needs --output")
		case o.asJSON && o.output == "":
			return usagef("--json needs --output: standard output is the export")
		}
		if err := o.cat.check(cmd); err != nil {
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// exported is what --json prints.
type exported struct {
	ID      string     `json:"log_id"`
	Records int64      `json:"records"`
	Bytes   int64      `json:"bytes"`
	Last    btrlog.LSN `json:"last,omitempty"`
	Whole   bool       `json:"whole"`
}

func (o *exportFlags) run(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, name string) (err error) {
	info, err := client.Info(ctx, name)
	if err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	var have exportScan
	if o.output != "" {
		file, scan, err := o.open(info.ID)
		if err != nil {
			return err
		}
		defer func() {
			// What was written is on the device before anybody is told that it is there.
			if serr := errors.Join(file.Sync(), file.Close()); err == nil {
				err = serr
			}
		}()
		w, have = file, scan
	}
	if have.Whole {
		return o.report(cmd, name, have)
	}
	from := o.cat.from
	if have.Records > 0 {
		o.cat.from = max(o.cat.from, uint64(have.Last)+1)
		if first := uint64(info.TrimBefore); o.cat.from < first && from < first {
			return &hinted{fmt.Errorf("the export in %s ends with LSN %d, and log %q is trimmed up to LSN %d meanwhile", o.output, have.Last, name, first-1),
				fmt.Sprintf("with --from %d it goes on behind what was trimmed", first)}
		}
	}
	r, err := client.OpenReader(ctx, name)
	if err != nil {
		return err
	}
	first, last, err := o.cat.bounds(ctx, client, r)
	if err != nil && have.Records > 0 && o.cat.from > max(from, 1) {
		tail, terr := r.Tail(ctx)
		if terr == nil && tail == have.Last && (o.cat.to == 0 || o.cat.to == uint64(tail)) {
			first, last, err = have.Last+1, have.Last, nil // all but its end was there
		}
	}
	if err != nil {
		return err
	}
	p := newProgress(cmd.ErrOrStderr(), "exported", 0)
	if last >= first {
		p.expect(int64(last - first + 1))
	}
	defer p.done()
	out := bufio.NewWriterSize(w, 1<<20)
	if have.Good == 0 {
		if _, err := out.Write(exportHead(info.ID)); err != nil {
			return err
		}
		have.ID = info.ID
	}
	begun := have.Records
	var frame []byte
	if last >= first {
		for rec, rerr := range r.Scan(ctx, first, last) {
			if err = rerr; err == nil {
				frame = appendExport(frame[:0], rec.LSN, rec.Epoch, uint32(len(rec.Data)), rec.Data) // a record has at most 8 MiB
				_, err = out.Write(frame)
			}
			if err != nil {
				break
			}
			have.Records++
			have.Bytes += int64(len(rec.Data))
			have.Last = rec.LSN
			p.show(have.Records-begun, have.Bytes)
		}
	}
	if err == nil {
		_, err = out.Write(appendExport(nil, have.Last, 0, exportEnd, nil))
	}
	if ferr := out.Flush(); err == nil {
		err = ferr
	}
	p.done()
	if err != nil {
		if ctx.Err() != nil {
			err = errInterrupted
		}
		more := ""
		var lost *btrlog.Error
		if errors.Is(err, btrlog.ErrDataLoss) && errors.As(err, &lost) {
			err, more = lossOf(ctx, r, lost, last, wholeLossLimit)
		}
		return &hinted{fmt.Errorf("%w%s; exported %s", err, more, plural(have.Records, "record")), o.advise(err, last)}
	}
	have.Whole = true
	return o.report(cmd, name, have)
}

// wholeLossLimit is the longest search for the end of a loss.
const wholeLossLimit = 10 * time.Second

// lossOf returns lost with all that is lost behind it, up to last: a scan tells of some thousand LSNs at a time. It searches no longer than
// limit; more then says that this need not be all.
func lossOf(ctx context.Context, r *btrlog.Reader, lost *btrlog.Error, last btrlog.LSN, limit time.Duration) (whole *btrlog.Error, more string) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	all := *lost
	for all.To < last {
		var err error
		for _, err = range r.Scan(ctx, all.To+1, last) {
			break // the first record, or why there is none
		}
		var next *btrlog.Error
		switch {
		case errors.Is(err, btrlog.ErrDataLoss) && errors.As(err, &next) && next.From == all.To+1 && next.Epoch == all.Epoch:
			all.To = next.To
			continue
		case err != nil && !errors.Is(err, btrlog.ErrDataLoss):
			more = "; there may be more behind them"
		}
		break
	}
	return &all, more
}

// advise says what to do about an export of LSNs up to last that failed.
func (o *exportFlags) advise(err error, last btrlog.LSN) string {
	var e *btrlog.Error
	gone := errors.As(err, &e) && (e.Kind == btrlog.ErrDataLoss || e.Kind == btrlog.ErrTrimmed)
	switch {
	case gone: // to repeat the command as it was meets the same
		var parts []string
		behind := fmt.Sprintf("--from %d", e.To+1)
		if o.output != "" {
			behind = "--resume " + behind
		}
		switch {
		case e.Kind == btrlog.ErrTrimmed:
			parts = append(parts, "they were removed on purpose")
		case e.Epoch != 0: // on record
			parts = append(parts, "there is no way to get them")
		default:
			parts = append(parts, advice(e))
		}
		if e.To < last {
			parts = append(parts, "repeated with "+behind+" the command goes on behind them")
		}
		return strings.Join(parts, "; ")
	case e != nil && e.Kind == btrlog.ErrNotFound && e.From == 0: // the log is deleted
		return ""
	case o.output != "":
		return "repeat the command with --resume"
	}
	return advice(err)
}

// open makes the file, or finds out how far an export in it goes.
func (o *exportFlags) open(id btrlog.LogID) (*os.File, exportScan, error) {
	if !o.resume {
		file, err := os.OpenFile(o.output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, os.ErrExist) {
			return nil, exportScan{}, &hinted{fmt.Errorf("file %s exists, and is not replaced", o.output), "go on with the export in it by --resume, or give --output another file name"}
		}
		return file, exportScan{}, err
	}
	file, err := os.OpenFile(o.output, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, exportScan{}, err
	}
	fail := func(err error) (*os.File, exportScan, error) {
		return nil, exportScan{}, fmt.Errorf("%s: %w", o.output, errors.Join(err, file.Close()))
	}
	st, err := file.Stat()
	if err != nil {
		return fail(err)
	}
	if st.Size() < exportHeadBytes { // cut before there was anything, or new
		var start [8]byte
		n, _ := file.ReadAt(start[:], 0) // fewer bytes are compared then
		if string(start[:n]) != exportMagic[:n] {
			return fail(errNoExport)
		}
		if err := file.Truncate(0); err != nil {
			return fail(err)
		}
		return file, exportScan{}, nil
	}
	have, err := readExport(file, nil)
	if err != nil {
		return fail(err)
	}
	if have.ID != id {
		return fail(fmt.Errorf("it is an export of the log with id %016x", uint64(have.ID)))
	}
	if !have.Whole {
		if err := file.Truncate(have.Good); err != nil {
			return fail(err)
		}
		if _, err := file.Seek(have.Good, io.SeekStart); err != nil {
			return fail(err)
		}
	}
	return file, have, nil
}

func (o *exportFlags) report(cmd *cobra.Command, name string, s exportScan) error {
	if o.output == "" {
		return nil
	}
	if o.asJSON {
		return printJSON(cmd.OutOrStdout(), exported{fmt.Sprintf("%016x", uint64(s.ID)), s.Records, s.Bytes, s.Last, s.Whole})
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s holds %s of log %s, %s\n", o.output, plural(s.Records, "record"), name, humanBytes(s.Bytes))
	return err
}

// show reads an export.
func (o *exportFlags) show(cmd *cobra.Command) error {
	file, err := os.Open(o.read)
	if err != nil {
		return err
	}
	defer file.Close() // nothing was written
	out := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<20)
	visit := func(rec btrlog.Record) error { _, err := out.Write(rec.Data); return err }
	if o.asJSON {
		visit = nil
	}
	s, err := readExport(file, visit)
	if ferr := out.Flush(); err == nil {
		err = ferr
	}
	if err == nil && o.asJSON {
		err = printJSON(cmd.OutOrStdout(), exported{fmt.Sprintf("%016x", uint64(s.ID)), s.Records, s.Bytes, s.Last, s.Whole})
	}
	if err == nil && !s.Whole {
		err = fmt.Errorf("the export is not whole: it ends with LSN %d", s.Last)
		if s.LastGood != nil {
			err = fmt.Errorf("%w; %w", err, s.LastGood)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.read, err)
	}
	return nil
}
