package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
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
		for i := range logs {
			contents, err := a.Contents(ctx, protocol.LogID(logs[i].ID))
			if err != nil {
				return fmt.Errorf("log %s: %w", logs[i].Name, err)
			}
			d := describeArchived(&logs[i], contents, len(args) > 0)
			switch {
			case asJSON:
				err = printJSON(cmd.OutOrStdout(), d)
			case len(args) > 0:
				rows = stretchRows(d)
			default:
				rows = append(rows, []string{d.Log, fmt.Sprint(d.Copies), fmt.Sprint(d.Packed), humanBytes(d.Bytes), orElse(d.First > 0 && d.First <= d.Through, lsnRange(d.First, d.Through), "-")})
			}
			if err != nil {
				return err
			}
		}
		if asJSON {
			return nil
		}
		head := []string{"LOG", "COPIES", "IN PACKS", "BYTES", "RECORDS"}
		if len(args) > 0 {
			head = []string{"RECORDS", "EPOCH", "BYTES", "SINCE", "NOTE", "OBJECT"}
		}
		return printRows(cmd.OutOrStdout(), append([][]string{head}, rows...))
	})
	return cmd
}

// logsNamed returns the logs of the names, or all.
func logsNamed(ctx context.Context, client *btrlog.Client, names []string) ([]btrlog.LogInfo, error) {
	var logs []btrlog.LogInfo
	for _, name := range names {
		info, err := client.Info(ctx, name)
		if err != nil {
			return nil, err
		}
		logs = append(logs, info)
	}
	if len(names) > 0 {
		return logs, nil
	}
	for info, err := range client.Logs(ctx, "") {
		if err != nil {
			return nil, err
		}
		logs = append(logs, info)
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

// verdict is what 'archive verify' found of a log.
type verdict struct {
	Log      string           `json:"log"`
	ID       string           `json:"log_id"`
	Sound    bool             `json:"sound"`
	Copies   int              `json:"copies"`
	Bytes    int64            `json:"bytes"`                 // as they are stored
	Plain    int64            `json:"plain_bytes,omitempty"` // of the records, uncompressed; with --deep
	First    btrlog.LSN       `json:"first"`                 // that must be there
	Through  btrlog.LSN       `json:"through"`               // that must be there: what nodes take for archived, and what is
	Missing  []protocol.Range `json:"missing"`
	Damaged  []string         `json:"damaged"`
	Foreign  []string         `json:"foreign"` // keys among the log's that this program does not write
	Doubles  int              `json:"doubles"`
	Doubled  int64            `json:"doubled_bytes"`
	Replaced int              `json:"replaced"` // in packs that were merged and will be deleted
	Read     bool             `json:"read"`     // every byte was
}

const archiveVerifyLong = `Check that the object store holds what it should of all logs, or of those that are named: every record from the trim point on that a node
takes for archived or that the archive itself proves, apart from those that their owner gave up. Doubles, records that are there twice
under the same epoch, are counted and no fault.

With --deep every byte is read, and every checksum and hash compared; without it the listings, and the directories of packs, must do. The
nodes are asked what they take for archived; one that does not answer is left out.

The exit code is 1 if something is missing or damaged.`

func archiveVerify(c *connection) *cobra.Command {
	var asJSON, deep bool
	cmd := &cobra.Command{
		Use:   "verify [NAME...]",
		Short: "Check that nothing that is archived is missing or damaged",
		Long:  archiveVerifyLong,
		Example: `  btrlog archive verify
  btrlog archive verify --deep orders
  btrlog archive verify --json | jq 'select(.sound | not)'`,
		ValidArgsFunction: c.completeName,
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "read every byte and compare every checksum")
	jsonFlag(cmd, &asJSON, "one JSON object for each log and line")
	cmd.RunE = c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		a, store, err := c.openArchive(ctx, cmd)
		if err != nil {
			return err
		}
		defer store.Close() // nothing was written
		registered, err := client.Nodes(ctx)
		if err != nil {
			return err
		}
		// The nodes first: what they take for archived then is archived when the store is listed.
		var cluster clusterReport
		cluster.ask(ctx, registered, min(c.timeout, answerLimit))
		logs, err := logsNamed(ctx, client, args)
		if err != nil {
			return err
		}
		p := newProgress(cmd.ErrOrStderr(), "verified", 0)
		defer p.done()
		rows := [][]string{{"LOG", "RECORDS", "COPIES", "BYTES", "DOUBLES", "FOUND"}}
		bad := 0
		var read int64
		for i := range logs {
			v, err := verifyLog(ctx, client, a, &cluster, &logs[i], deep, func(records, bytes int64) {
				read += bytes
				p.show(records, read)
			})
			if err != nil {
				return fmt.Errorf("log %s: %w", logs[i].Name, err)
			}
			if !v.Sound {
				bad++
			}
			if asJSON {
				if err := printJSON(cmd.OutOrStdout(), v); err != nil {
					return err
				}
				continue
			}
			rows = append(rows, []string{v.Log, orElse(v.First <= v.Through, lsnRange(v.First, v.Through), "-"), fmt.Sprint(v.Copies), humanBytes(v.Bytes), fmt.Sprint(v.Doubles), v.found()})
		}
		p.done()
		if !asJSON {
			if err := printRows(cmd.OutOrStdout(), rows); err != nil {
				return err
			}
		}
		if bad > 0 {
			return &hinted{fmt.Errorf("%s of %d with records that are missing or damaged in the archive", plural(int64(bad), "log"), len(logs)),
				"restore the objects; what a node still has it writes again"}
		}
		return nil
	})
	return cmd
}

// verifyTries bounds how often a log is listed anew because what a listing showed was gone when it was read.
const verifyTries = 5

// verifyLog checks one log. Objects may go meanwhile, being merged, trimmed or replaced by others: what is gone is damage only if a new
// listing still shows it.
func verifyLog(ctx context.Context, client *btrlog.Client, a *archive.Archive, cluster *clusterReport, info *btrlog.LogInfo, deep bool, progress func(records, bytes int64)) (*verdict, error) {
	read := make(map[string]wasRead)
	for try := 1; ; try++ {
		v, gone, err := verifyListed(ctx, client, a, cluster, info, deep, read, progress)
		if err != nil || !gone || try == verifyTries {
			return v, err
		}
	}
}

// wasRead is what was read, and how it was.
type wasRead struct {
	found error
	plain int64
}

// verifyListed checks what one listing shows. gone says that some of it was not there when it was read.
func verifyListed(ctx context.Context, client *btrlog.Client, a *archive.Archive, cluster *clusterReport, info *btrlog.LogInfo, deep bool, read map[string]wasRead, progress func(records, bytes int64)) (v *verdict, gone bool, err error) {
	id := logID(info)
	c, err := a.Contents(ctx, protocol.LogID(info.ID))
	if err != nil {
		return nil, false, err
	}
	through := c.Through()
	for _, n := range cluster.Nodes {
		if l := n.logs[id]; l != nil {
			through = max(through, l.ArchivedThrough)
		}
	}
	missing := missingOf(c, info, through)
	if len(missing) > 0 {
		// The log may have been trimmed since its record was read, and its objects be gone for that reason.
		now, err := client.Info(ctx, info.Name)
		if err != nil {
			return nil, false, err
		}
		info = &now
		missing = missingOf(c, info, through)
	}
	v = &verdict{Log: info.Name, ID: id, Copies: len(c.Stored), First: max(info.TrimBefore, 1), Through: btrlog.LSN(through), Missing: missing,
		Damaged: slices.Clone(c.Broken), Foreign: c.Foreign, Read: deep}
	var records int64
	for i := range c.Stored {
		s := &c.Stored[i]
		v.Bytes += s.Size
		if s.Double {
			v.Doubles++
			v.Doubled += s.Size
		}
		if s.Replaced {
			v.Replaced++
		}
		if !deep {
			continue
		}
		at := fmt.Sprintf("%s at %d", s.Name, s.Offset)
		r, ok := read[at]
		if !ok || errors.Is(r.found, objstore.ErrNotFound) {
			r.found = a.Verify(ctx, s)
			r.plain = s.Content
			read[at] = r
			records += int64(s.Key.Last-s.Key.First) + 1
			progress(records, s.Size)
		}
		found := r.found
		v.Plain += r.plain
		gone = gone || errors.Is(found, objstore.ErrNotFound)
		switch {
		case errors.Is(found, archive.ErrDamaged), errors.Is(found, archive.ErrTooNew):
			v.Damaged = append(v.Damaged, found.Error())
		case found != nil:
			return nil, false, found
		}
	}
	v.Sound = len(v.Missing)+len(v.Damaged) == 0
	return v, gone, nil
}

func missingOf(c *archive.Contents, info *btrlog.LogInfo, through protocol.LSN) []protocol.Range {
	var lost protocol.LostRanges
	for _, l := range info.Lost {
		lost = append(lost, protocol.Lost{From: protocol.LSN(l.From), To: protocol.LSN(l.To), Epoch: protocol.Epoch(l.Epoch)})
	}
	return c.Missing(max(protocol.LSN(info.TrimBefore), 1), through, lost)
}

// found says in a few words what is wrong.
func (v *verdict) found() string {
	var parts []string
	if len(v.Missing) > 0 {
		m := v.Missing[0]
		text := fmt.Sprintf("missing: %s", lsnRange(btrlog.LSN(m.From), btrlog.LSN(m.To)))
		if n := len(v.Missing) - 1; n > 0 {
			text += fmt.Sprintf(" and %s more", plural(int64(n), "range"))
		}
		parts = append(parts, text)
	}
	if len(v.Damaged) > 0 {
		text := "damaged: " + oneLine(v.Damaged[0])
		if n := len(v.Damaged) - 1; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		parts = append(parts, text)
	}
	if len(v.Foreign) > 0 {
		parts = append(parts, fmt.Sprintf("foreign keys: %d", len(v.Foreign)))
	}
	if len(parts) == 0 {
		return "sound"
	}
	return strings.Join(parts, "; ")
}
