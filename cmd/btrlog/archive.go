package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/httpstore"
)

func archiveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Look at what the object store holds of the logs",
		Long: `Look at what the object store holds of the logs. The commands change nothing, but for gc with --yes.

Without --store and --nodes they speak to the node at ` + defaultListen + `, which is where 'btrlog dev' listens.`,
	}
	group(cmd)
	var c connection
	c.flags(cmd)
	cmd.AddCommand(archiveList(&c), archiveVerify(&c), archiveGC(&c))
	return cmd
}

// openArchive opens the archive of the cluster that the client is of. The caller closes the store.
func (c *connection) openArchive(ctx context.Context, cmd *cobra.Command) (*archive.Archive, objstore.Store, error) {
	cfg, err := c.config(cmd)
	if err != nil {
		return nil, nil, err
	}
	var store objstore.Store
	if cfg.StoreURL != "" {
		store, err = objstore.Open(ctx, cfg.StoreURL)
	} else {
		urls := make([]string, len(cfg.Nodes))
		for i, n := range cfg.Nodes {
			urls[i] = "http://" + n
		}
		if cfg.Root == "" {
			if cfg.Root, err = rootOf(ctx, urls, c.timeout); err != nil {
				return nil, nil, err
			}
		}
		store, err = httpstore.New(urls, httpstore.Options{})
	}
	if err != nil {
		return nil, nil, err
	}
	a, err := archive.New(store, archive.Options{Root: cfg.Root})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return a, store, nil
}

// clusterRoot returns the prefix of the cluster's keys.
func (c *connection) clusterRoot(ctx context.Context, cmd *cobra.Command) (string, error) {
	cfg, err := c.config(cmd)
	if err != nil || cfg.Root != "" || cfg.StoreURL != "" {
		return cfg.Root, err
	}
	urls := make([]string, len(cfg.Nodes))
	for i, n := range cfg.Nodes {
		urls[i] = "http://" + n
	}
	return rootOf(ctx, urls, c.timeout)
}

// rootOf asks nodes for the prefix of the cluster's keys.
func rootOf(ctx context.Context, urls []string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var errs []error
	for _, u := range urls {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u+node.IdentityPath, nil)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var id node.Identity
		err = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&id)
		resp.Body.Close()
		if err == nil && resp.StatusCode == http.StatusOK {
			return id.Root, nil
		}
		errs = append(errs, fmt.Errorf("%s answers %s: %w", u, resp.Status, err))
	}
	return "", fmt.Errorf("no node says where in its store the cluster is: %w", errors.Join(errs...))
}

// archivedLog is what 'archive ls' prints of a log.
type archivedLog struct {
	Log       string     `json:"log"`
	ID        string     `json:"log_id"`
	Copies    int        `json:"copies"`
	Packed    int        `json:"packed"`          // of the copies, those in objects that are shared with other logs
	Bytes     int64      `json:"bytes"`           // as they are stored
	First     btrlog.LSN `json:"first,omitempty"` // that is not trimmed
	Through   btrlog.LSN `json:"through,omitempty"`
	Stretches []stretch  `json:"stretches,omitempty"` // with NAME
}

// stretch is one copy of some records.
type stretch struct {
	First    btrlog.LSN   `json:"first"`
	Last     btrlog.LSN   `json:"last"`
	Epoch    btrlog.Epoch `json:"epoch"`
	Proven   btrlog.LSN   `json:"committed_through"`
	Bytes    int64        `json:"bytes"`                 // as they are stored
	Plain    int64        `json:"plain_bytes,omitempty"` // of the records, uncompressed; only known of parts of packs that have compressed ones
	Since    *time.Time   `json:"since,omitempty"`
	Object   string       `json:"object"`
	Offset   int64        `json:"offset"`
	Packed   bool         `json:"packed"`
	Double   bool         `json:"double"`
	Replaced bool         `json:"replaced"`
}

func archiveList(c *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls [NAME]",
		Short: "List what is archived of each log, or each object of one",
		Long: `List what is archived of each log, or of one log each copy of some records: an object of its own, or a part of a pack, an object that
holds short stretches of many logs. Bytes are those that the store has. What compressed records are without compression is shown of parts
of packs; of others, 'archive verify --deep' finds it.`,
		Example: `  btrlog archive ls
  btrlog archive ls orders
  btrlog archive ls --json orders | jq '.stretches[].bytes'`,
		Args: atMostOne("the log's name"), ValidArgsFunction: c.completeName,
	}
	jsonFlag(cmd, &asJSON, "one JSON object for each log and line")
	cmd.RunE = c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		a, store, err := c.openArchive(ctx, cmd)
		if err != nil {
			return err
		}
		defer store.Close() // nothing was written
		logs, err := logsNamed(ctx, client, args)
		if err != nil {
			return err
		}
		done := slowNotice(cmd.ErrOrStderr(), "listing the archive")
		defer done()
		var rows [][]string
		var failed failures
		for i := range logs {
			l := &logs[i]
			var contents *archive.Contents
			if l.err == nil {
				if contents, l.err = a.Contents(ctx, protocol.LogID(l.info.ID)); l.err != nil {
					l.err = fmt.Errorf("log %s: %w", l.info.Name, l.err)
				}
			}
			if ctx.Err() != nil {
				return errInterrupted
			}
			if l.err != nil { // it does not hide the others
				failed.add(l.err)
				if asJSON {
					if err := printJSON(cmd.OutOrStdout(), unlisted{l.info.Name, oneLine(message(l.err))}); err != nil {
						return err
					}
				} else if len(args) == 0 {
					rows = append(rows, []string{l.info.Name, "-", "-", "-", "not listed: " + oneLine(message(l.err))})
				}
				continue
			}
			d := describeArchived(&l.info, contents, len(args) > 0)
			switch {
			case asJSON:
				if err := printJSON(cmd.OutOrStdout(), d); err != nil {
					return err
				}
			case len(args) > 0:
				rows = stretchRows(d)
			default:
				rows = append(rows, []string{d.Log, fmt.Sprint(d.Copies), fmt.Sprint(d.Packed), humanBytes(d.Bytes), orElse(d.First > 0 && d.First <= d.Through, lsnRange(d.First, d.Through), "-")})
			}
		}
		err = failed.of(len(logs), "could not be listed")
		if asJSON || len(args) > 0 && err != nil {
			return err
		}
		head := []string{"LOG", "COPIES", "IN PACKS", "BYTES", "RECORDS"}
		if len(args) > 0 {
			head = []string{"RECORDS", "EPOCH", "BYTES", "SINCE", "NOTE", "OBJECT"}
		}
		if perr := printRows(cmd.OutOrStdout(), append([][]string{head}, rows...)); perr != nil {
			return perr
		}
		return err
	})
	return cmd
}

// unlisted is what 'archive ls --json' prints of a log of which nothing could be found out.
type unlisted struct {
	Log   string `json:"log"`
	Error string `json:"error"`
}

// namedLog is a log that was asked for; err says why nothing but its name is known.
type namedLog struct {
	info btrlog.LogInfo
	err  error
}

// failures are those of single logs, which do not end a command that looks at several.
type failures struct {
	first error
	n     int
}

func (f *failures) add(err error) {
	if f.first == nil {
		f.first = err
	}
	f.n++
}

// of returns the error of a command that looked at so many logs, nil if none failed. What each failure is was printed before.
func (f *failures) of(logs int, what string) error {
	switch {
	case f.n == 0:
		return nil
	case logs == 1:
		return f.first
	}
	return fmt.Errorf("%s of %d %s; %s%w", plural(int64(f.n), "log"), logs, what, orElse(f.n > 1, "the first: ", ""), f.first)
}

// logsNamed returns the logs of the names, or all. A log whose record cannot be read does not hide the others.
func logsNamed(ctx context.Context, client *btrlog.Client, names []string) ([]namedLog, error) {
	var logs []namedLog
	for _, name := range names {
		info, err := client.Info(ctx, name)
		switch {
		case ctx.Err() != nil:
			return nil, errInterrupted
		case errors.Is(err, btrlog.ErrInvalid): // no log can have this name
			return nil, err
		case err != nil:
			info.Name = name
		}
		logs = append(logs, namedLog{info, err})
	}
	if len(names) > 0 {
		return logs, nil
	}
	for info, err := range client.Logs(ctx, "") {
		if err != nil && !damagedRecord(err) {
			return nil, err
		}
		var e *btrlog.Error
		if errors.As(err, &e) {
			info.Name = e.Log
		}
		logs = append(logs, namedLog{info, err})
	}
	return logs, nil
}

func describeArchived(info *btrlog.LogInfo, c *archive.Contents, each bool) archivedLog {
	d := archivedLog{Log: info.Name, ID: logID(info), Copies: len(c.Stored), Through: btrlog.LSN(c.Through())}
	for _, s := range c.Stored {
		d.Bytes += s.Size
		if s.Packed {
			d.Packed++
		}
		if first := max(btrlog.LSN(s.Key.First), info.TrimBefore); first <= btrlog.LSN(s.Key.Last) && (d.First == 0 || first < d.First) {
			d.First = first
		}
		if each {
			x := stretch{First: btrlog.LSN(s.Key.First), Last: btrlog.LSN(s.Key.Last), Epoch: btrlog.Epoch(s.Key.Label), Proven: btrlog.LSN(min(s.CLSN, s.Key.Last)),
				Bytes: s.Size, Plain: s.Content, Object: s.Name, Offset: s.Offset, Packed: s.Packed, Double: s.Double, Replaced: s.Replaced}
			if !s.Since.IsZero() {
				since := s.Since.UTC()
				x.Since = &since
			}
			d.Stretches = append(d.Stretches, x)
		}
	}
	return d
}

func stretchRows(d archivedLog) (rows [][]string) {
	for _, s := range d.Stretches {
		since := "-"
		if s.Since != nil {
			since = stamp(*s.Since)
		}
		var notes []string
		if s.Proven < s.Last {
			notes = append(notes, fmt.Sprintf("committed through %d", s.Proven))
		}
		if s.Plain > s.Bytes {
			notes = append(notes, "uncompressed "+humanBytes(s.Plain))
		}
		if s.Double {
			notes = append(notes, "double")
		}
		if s.Replaced {
			notes = append(notes, "merged, will go")
		}
		object := s.Object
		if s.Packed {
			object = fmt.Sprintf("%s at %d", s.Object, s.Offset)
		}
		rows = append(rows, []string{lsnRange(s.First, s.Last), fmt.Sprint(s.Epoch), humanBytes(s.Bytes), since, orDash(strings.Join(notes, ", ")), object})
	}
	return rows
}
