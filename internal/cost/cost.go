// Package cost reckons what a workload costs in a cloud: with BtrLog, with block storage, and with each append an object. It is a
// calculation from a table of prices, not a measurement; what it counts is said beside each figure.
package cost

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Prices is the table that a calculation uses. Its JSON form is what a user edits.
type Prices struct {
	Name      string              `json:"name"`
	Currency  string              `json:"currency"`
	Hours     float64             `json:"hours_per_month"`
	Instances map[string]Instance `json:"instances"`
	Objects   ObjectPrices        `json:"object_store"`
	Fast      ObjectPrices        `json:"fast_object_store"` // in one zone, with an answer in milliseconds
	Transfer  struct {
		Out float64 `json:"between_zones_out"` // per GB
		In  float64 `json:"between_zones_in"`
	} `json:"transfer_gb"`
	IO2 BlockPrices `json:"block_io2"`
	GP3 BlockPrices `json:"block_gp3"`
}

// Instance is a machine with local SSDs.
type Instance struct {
	Hour      float64 `json:"hour"`
	WriteIOPS float64 `json:"write_iops"` // 4 KiB writes per second that its SSDs sustain
	Gbit      float64 `json:"gbit"`       // network that it sustains
}

// ObjectPrices of an object store.
type ObjectPrices struct {
	Put     float64 `json:"put_per_1000"`
	Get     float64 `json:"get_per_1000"`
	List    float64 `json:"list_per_1000"`
	GBMonth float64 `json:"gb_month"`
	PutGB   float64 `json:"put_gb,omitempty"` // per GB written
}

// BlockPrices of a kind of volume.
type BlockPrices struct {
	GBMonth float64 `json:"gb_month"`
	Free    float64 `json:"free_iops,omitempty"`
	Steps   []Step  `json:"iops_month"`
	MaxIOPS float64 `json:"max_iops"` // of one volume; more takes more volumes
}

// Step is the price of the IOPS up to a number, above the step before.
type Step struct {
	UpTo float64 `json:"up_to"`
	Each float64 `json:"each"`
}

//go:embed prices.json
var defaults []byte

// Default returns the built-in table, and its text as it is to be edited.
func Default() (Prices, []byte) {
	p, err := Parse(defaults)
	if err != nil {
		panic(err) // a test reads it
	}
	return p, slices.Clone(defaults)
}

// Parse reads a table. Unknown fields are errors, so that a misspelt one is not a price of zero.
func Parse(text []byte) (Prices, error) {
	var p Prices
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, fmt.Errorf("cost: the table of prices: %w", err)
	}
	if p.Hours <= 0 || p.Hours > 744 {
		return p, fmt.Errorf("cost: the table of prices: hours_per_month is %v; a month has 672 to 744", p.Hours)
	}
	if len(p.Instances) == 0 {
		return p, errors.New("cost: the table of prices has no instances")
	}
	for name, i := range p.Instances {
		if i.Hour < 0 || i.WriteIOPS <= 0 || i.Gbit <= 0 {
			return p, fmt.Errorf("cost: the table of prices: instance %s needs a price, write_iops and gbit above zero", name)
		}
	}
	for name, b := range map[string]BlockPrices{"block_io2": p.IO2, "block_gp3": p.GP3} {
		if b.MaxIOPS <= 0 || !slices.IsSortedFunc(b.Steps, func(x, y Step) int { return int(x.UpTo - y.UpTo) }) {
			return p, fmt.Errorf("cost: the table of prices: %s needs max_iops above zero and steps in ascending order", name)
		}
	}
	return p, nil
}

// Workload is what is to be paid for.
type Workload struct {
	Rate      float64       `json:"appends_per_second"` // of all logs together
	Size      float64       `json:"record_bytes"`
	Logs      float64       `json:"logs"`
	N         int           `json:"nodes_per_log"`
	Zones     int           `json:"zones"`
	PerIO     float64       `json:"appends_per_io"`    // that one forced write of a node takes in; also of a volume
	Retain    time.Duration `json:"retain_ns"`         // how long archived records are kept
	Segment   float64       `json:"segment_bytes"`     //
	FlushAge  time.Duration `json:"flush_age_ns"`      // 0: never
	PackEvery time.Duration `json:"pack_every_ns"`     // 0: an object for each short stretch
	Instance  string        `json:"instance"`          // of the log nodes
	Use       float64       `json:"utilisation"`       // share of an instance's IOPS and network that is planned for
	Forward   bool          `json:"forward"`           // one node of a zone passes appends on to the others there
	ReadShare float64       `json:"cold_read_share"`   // of the archived bytes, read once
	Batch     time.Duration `json:"object_batch_ns"`   // for logging to objects directly: appends of a log that come so close go into one object; 0: each is one
	Exclusive bool          `json:"exclusive_machine"` // whole instances; else the share of them that the workload takes
}

// Line is one part of a bill.
type Line struct {
	What  string  `json:"what"`
	How   string  `json:"how"`
	Month float64 `json:"month"`
}

// Bill is what one way to log costs in a month.
type Bill struct {
	Name       string  `json:"name"`
	Lines      []Line  `json:"lines"`
	Month      float64 `json:"month"`
	PerMillion float64 `json:"per_million_appends"`
	Note       string  `json:"note,omitempty"`
	// Requests to the object store in a month.
	Puts  float64 `json:"puts"`
	Gets  float64 `json:"gets"`
	Lists float64 `json:"lists"`
}

func (b *Bill) add(month float64, what, how string, args ...any) {
	b.Lines = append(b.Lines, Line{what, fmt.Sprintf(how, args...), month})
	b.Month += month
}

func (b *Bill) finish(appends float64) {
	if appends > 0 {
		b.PerMillion = b.Month / appends * 1e6
	}
}

const gb = 1e9

// recordOverhead is what framing and index add to a record, on the disk of a node and in the archive.
const recordOverhead = 8

// maxWorkload bounds each number of a workload: far above every workload, and the bills can still be read.
const maxWorkload = 1e15

// Check says what of a workload cannot be.
func (w *Workload) Check(p Prices) error {
	for _, v := range [...]float64{w.Rate, w.Size, w.Logs, w.PerIO, w.Use, w.ReadShare} {
		if math.IsNaN(v) || v > maxWorkload {
			return fmt.Errorf("%v is no number that a workload has; up to %.0e are allowed", v, maxWorkload)
		}
	}
	switch _, ok := p.Instances[w.Instance]; {
	case w.Rate <= 0 || w.Size < 0 || w.Logs < 1 || w.PerIO < 1 || w.Segment < 1:
		return errors.New("rate, logs, appends for each write and segment must be above zero, and sizes not below")
	case w.N < 1 || w.Zones < 1 || w.Zones > w.N:
		return fmt.Errorf("%d nodes in %d zones: each zone needs a node", w.N, w.Zones)
	case w.Use <= 0 || w.Use > 1 || w.ReadShare < 0:
		return errors.New("the planned utilisation is above 0 and at most 1")
	case w.Retain < 0 || w.FlushAge < 0 || w.PackEvery < 0 || w.Batch < 0:
		return errors.New("times must not be below zero")
	case !ok:
		names := make([]string, 0, len(p.Instances))
		for n := range p.Instances {
			names = append(names, n)
		}
		slices.SortFunc(names, func(a, b string) int { return int(math.Copysign(1, p.Instances[a].Hour-p.Instances[b].Hour)) })
		return fmt.Errorf("no price of instance %q; the table has %s", w.Instance, strings.Join(names, ", "))
	}
	return nil
}

// Reckon returns the bills of a workload that Check accepts: BtrLog first.
func Reckon(p Prices, w Workload) []Bill {
	month := p.Hours * 3600
	appends := w.Rate * month
	return []Bill{btrlog(p, w, month, appends), block(p, p.IO2, w, "block storage, io2", month, appends), block(p, p.GP3, w, "block storage, gp3", month, appends),
		direct(p.Objects, w, "an object for each append", month, appends), direct(p.Fast, w, "the same, fast store in one zone", month, appends)}
}

func btrlog(p Prices, w Workload, month, appends float64) Bill {
	b := Bill{Name: "BtrLog"}
	inst := p.Instances[w.Instance]
	iops := w.Rate * float64(w.N) / w.PerIO
	gbit := w.Rate * float64(w.N) * (w.Size + 100) * 8 / 1e9 // headers of the packet
	need := max(iops/inst.WriteIOPS, gbit/inst.Gbit) / w.Use
	count := max(need, float64(w.N))
	why := "as many as a log has nodes"
	switch {
	case !w.Exclusive:
		count, why = need, "the share that this workload takes"
	case count > float64(w.N):
		count = math.Ceil(count)
		why = "for the writes"
		if gbit/inst.Gbit > iops/inst.WriteIOPS {
			why = "for the network"
		}
	}
	b.add(count*inst.Hour*p.Hours, "log nodes", "%s %s, %s: %s writes and %.2f Gbit a second of all", amount(count), w.Instance, why, amount(iops), gbit)

	bytes := w.Rate * (w.Size + recordOverhead) // archived per second
	fullEvery := w.Segment / (bytes / w.Logs)   // seconds, of one log
	full := bytes / w.Segment
	var puts, gets, lists float64
	if age := w.FlushAge.Seconds(); age > 0 && fullEvery > age {
		// Logs that do not fill a segment within their age.
		full = 0
		tails := w.Logs / age
		if w.Rate/w.Logs*age < 1 {
			tails = w.Rate // not even a record within the age: each record is a stretch
		}
		puts, lists = tails, 2*tails
		if pack := w.PackEvery.Seconds(); pack > 0 {
			// Three nodes take turns by log; each packs what is due at most so often, and reads the others' packs.
			every := max(pack, age*3/4)
			packs := min(tails, float64(w.N)/every)
			puts, lists, gets = packs, float64(w.N)/every, 2*packs*float64(w.N-1)
			puts *= 1 + 2.0/8 // merged once or twice, eight at a time
			gets += packs * 2
		}
	}
	puts += full
	lists += full * float64(w.N-1)
	b.Puts, b.Gets, b.Lists = puts*month, gets*month, lists*month
	b.add(b.Puts*p.Objects.Put/1000, "PUT", "%s: a full segment is one, whichever node writes it", amount(b.Puts))
	b.add(b.Lists*p.Objects.List/1000, "LIST", "%s: the other nodes look whether it is there", amount(b.Lists))
	if w.ReadShare > 0 {
		b.Gets += bytes * month * w.ReadShare / (4 << 20)
	}
	b.add(b.Gets*p.Objects.Get/1000, "GET", "%s", amount(b.Gets))
	b.storage(p.Objects.GBMonth, bytes, w.Retain)
	if w.Zones > 1 {
		// The client is in one of the zones; each byte that leaves it is paid for on both sides.
		remote := float64(w.N) * float64(w.Zones-1) / float64(w.Zones)
		if w.Forward {
			remote = float64(w.Zones - 1)
		}
		out := w.Rate * w.Size * remote * month / gb
		b.add(out*(p.Transfer.Out+p.Transfer.In), "transfer", "%s GB between zones, to %s nodes of another zone%s", amount(out), amount(remote), map[bool]string{true: ", which pass them on"}[w.Forward])
	}
	b.finish(appends)
	return b
}

// storage adds the line for what is kept.
func (b *Bill) storage(price, bytes float64, retain time.Duration) {
	kept := bytes * retain.Seconds() / gb
	b.add(kept*price, "storage", "%s GB, what %v of writing makes", amount(kept), retain)
}

func block(p Prices, k BlockPrices, w Workload, name string, month, appends float64) Bill {
	b := Bill{Name: name, Note: "in one zone; the host that uses it is not counted"}
	iops := w.Rate / w.PerIO
	volumes := max(1, math.Ceil(iops/k.MaxIOPS))
	each, last := iops/volumes, 0.0
	var price float64
	for _, s := range k.Steps {
		if each > last {
			price += max(0, min(each, s.UpTo)-max(last, k.Free)) * s.Each
		}
		last = s.UpTo
	}
	b.add(price*volumes, "IOPS", "%s on %s", amount(iops), plural(volumes, "volume"))
	kept := w.Rate * w.Size * w.Retain.Seconds() / gb
	b.add(kept*k.GBMonth, "storage", "%s GB, what %v of writing makes", amount(kept), w.Retain)
	b.finish(appends)
	return b
}

func direct(k ObjectPrices, w Workload, name string, month, appends float64) Bill {
	b := Bill{Name: name, Note: "the appends of a log wait for each other's request"}
	puts := w.Rate
	if batch := w.Batch.Seconds(); batch > 0 {
		puts = min(w.Rate, w.Logs/batch)
	}
	b.Puts = puts * month
	b.add(b.Puts*k.Put/1000, "PUT", "%s", amount(b.Puts))
	if k.PutGB > 0 {
		b.add(w.Rate*w.Size*month/gb*k.PutGB, "upload", "%s GB", amount(w.Rate*w.Size*month/gb))
	}
	b.storage(k.GBMonth, w.Rate*w.Size, w.Retain)
	b.finish(appends)
	return b
}

func plural(n float64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return amount(n) + " " + one + "s"
}

// amount prints a number for people.
func amount(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1e12:
		return fmt.Sprintf("%.3g × 10^12", v/1e12)
	case a >= 1e9:
		return fmt.Sprintf("%.3g billion", v/1e9)
	case a >= 1e6:
		return fmt.Sprintf("%.3g million", v/1e6)
	case a >= 1000:
		return fmt.Sprintf("%.0f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}
