package meta

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/btrlog/btrlog/internal/protocol"
)

// The history is all that a log's record has many of, and each open reads it once and writes it twice. encoding/json takes a
// millisecond for a thousand entries; these take hundredths of that, for the same bytes.

var (
	historyField = []byte(`"history"`)
	historyNull  = []byte(`"history": null`)
	historyList  = []byte(`"history": [`)
)

// What stands around the numbers of an entry, one entry a line.
const (
	entryEpoch = "\n  {\"epoch\": "
	entryStart = ", \"start\": "
	entryEnd   = "}"
)

// marshalHistory is json.MarshalIndent(j, "", " ") but for the spaces in the history.
func marshalHistory(j logJSON) ([]byte, error) {
	h := j.History
	if len(h) > 0 {
		j.History = nil
	}
	body, err := json.MarshalIndent(j, "", " ")
	// In a string the quotes would have a backslash before them, so this is the field.
	at := bytes.Index(body, historyNull)
	if err != nil || len(h) == 0 || at < 0 {
		return body, err
	}
	out := make([]byte, 0, len(body)+len(h)*(len(entryEpoch)+len(entryStart)+len(entryEnd)+24))
	out = append(append(out, body[:at]...), historyList...)
	for i, e := range h {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, entryEpoch...)
		out = strconv.AppendUint(out, uint64(e.Epoch), 10)
		out = append(out, entryStart...)
		out = strconv.AppendUint(out, uint64(e.Start), 10)
		out = append(out, entryEnd...)
	}
	out = append(out, "\n ]"...)
	return append(out, body[at+len(historyNull):]...), nil
}

// strictHistory is strict for a log's record. A history that is not written as marshalHistory does, but for spaces, goes the
// long way.
func strictHistory(body []byte, j *logJSON) error {
	if at := bytes.Index(body, historyList); at >= 0 {
		if h, rest, ok := parseHistory(body[at+len(historyList):]); ok {
			short := make([]byte, 0, at+len(historyNull)+len(rest))
			short = append(append(append(short, body[:at]...), historyNull...), rest...)
			if err := strict(short, j, &j.Format, FormatVersion); err == nil && onlyHistory(short) {
				j.History = h
				return nil
			}
			*j = logJSON{}
		}
	}
	return strict(body, j, &j.Format, FormatVersion)
}

// onlyHistory says whether the one history of body is for certain the only one. Of more the last counts, and encoding/json knows which that
// is: it takes a name in any case, with escapes, and with letters beyond ASCII that fold to its own (ſ is an s).
func onlyHistory(body []byte) bool {
	for _, c := range body {
		if c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return bytes.Count(bytes.ToLower(body), historyField) == 1
}

// parseHistory takes the entries of a list and its end off the front of b.
func parseHistory(b []byte) (h protocol.History, rest []byte, ok bool) {
	p := parser{b, true}
	h = make(protocol.History, 0, len(b)/30+1)
	for more := true; more && p.ok; {
		e, s, own := p.entry()
		if !own {
			p.token("{")
			p.token(`"epoch"`)
			p.token(":")
			e = p.number()
			p.token(",")
			p.token(`"start"`)
			p.token(":")
			s = p.number()
			p.token("}")
		}
		h = append(h, protocol.HistoryEntry{Epoch: protocol.Epoch(e), Start: protocol.LSN(s)})
		p.space()
		if more = len(p.b) > 0 && p.b[0] == ','; more {
			p.b = p.b[1:]
		}
	}
	p.token("]")
	return h, p.b, p.ok
}

// parser takes tokens of JSON off the front of b; after the first that is another one ok is false.
type parser struct {
	b  []byte
	ok bool
}

// entry takes an entry as marshalHistory writes it, or nothing.
func (p *parser) entry() (epoch, start uint64, ok bool) {
	b, ok := bytes.CutPrefix(p.b, []byte(entryEpoch))
	if !ok {
		return 0, 0, false
	}
	if epoch, b, ok = digits(b); !ok || len(b) < len(entryStart) || string(b[:len(entryStart)]) != entryStart {
		return 0, 0, false
	}
	if start, b, ok = digits(b[len(entryStart):]); !ok || len(b) == 0 || b[0] != '}' {
		return 0, 0, false
	}
	p.b = b[1:]
	return epoch, start, true
}

// digits takes a number of up to 18 digits that does not begin with zero off the front of b.
func digits(b []byte) (v uint64, rest []byte, ok bool) {
	n := 0
	for n < len(b) && b[n]-'0' <= 9 {
		v = v*10 + uint64(b[n]-'0')
		n++
	}
	return v, b[n:], n > 0 && n <= 18 && b[0] != '0'
}

func (p *parser) space() {
	for len(p.b) > 0 && (p.b[0] == ' ' || p.b[0] == '\n' || p.b[0] == '\t' || p.b[0] == '\r') {
		p.b = p.b[1:]
	}
}

func (p *parser) token(t string) {
	p.space()
	if p.ok = p.ok && len(p.b) >= len(t) && string(p.b[:len(t)]) == t; p.ok {
		p.b = p.b[len(t):]
	}
}

// number takes a whole number without a sign.
func (p *parser) number() (v uint64) {
	p.space()
	n := 0
	for n < len(p.b) && p.b[n] >= '0' && p.b[n] <= '9' {
		n++
	}
	v, err := strconv.ParseUint(string(p.b[:n]), 10, 64)
	if err != nil || n > 1 && p.b[0] == '0' {
		p.ok = false
	}
	p.b = p.b[n:]
	return v
}
