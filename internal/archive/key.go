package archive

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Kind says in the key what an object proves (AR3).
type Kind byte

const (
	// Committed: the writer's cLSN was at or above the object's last LSN when it was written.
	Committed Kind = 'c'
	// Partly: the object may hold records above its cLSN, which stands in its metadata. It has a name of its own so that it
	// never keeps the proof of commitment, which comes later, out of the archive (TRACES H13).
	Partly Kind = 'p'
)

// HashBytes is the length of the hash in a key: SHA-256 cut to 128 bits.
const HashBytes = 16

// Key names one segment object:
//
//	<root>/arch/<log 16 hex>/<label 16 hex>/<first 16 hex>-<last 16 hex>-<kind>-<hash 32 hex>
type Key struct {
	Log         protocol.LogID
	Label       protocol.Epoch
	First, Last protocol.LSN
	Kind        Kind
	Hash        [HashBytes]byte
}

// nameBytes is the length of a key behind the root's prefix.
const nameBytes = 16 + 1 + 16 + 1 + 16 + 1 + 16 + 1 + 1 + 1 + 2*HashBytes

// name returns the key behind "<root>/arch/".
func (k Key) name() string {
	return fmt.Sprintf("%016x/%016x/%016x-%016x-%c-%x", uint64(k.Log), uint64(k.Label), uint64(k.First), uint64(k.Last), k.Kind, k.Hash)
}

// parseName is the strict inverse of name: exactly one spelling of every key is accepted, and only keys whose fields a
// log can have.
func parseName(s string) (Key, error) {
	var k Key
	bad := func(what string) (Key, error) {
		return Key{}, fmt.Errorf("archive: %q is no segment name: %s", s, what)
	}
	if len(s) != nameBytes {
		return bad(fmt.Sprintf("%d bytes, not %d", len(s), nameBytes))
	}
	if s[16] != '/' || s[33] != '/' || s[50] != '-' || s[67] != '-' || s[69] != '-' {
		return bad("separators")
	}
	var f [4]uint64
	for i, at := range [...]int{0, 17, 34, 51} {
		v, ok := parseHex16(s[at : at+16])
		if !ok {
			return bad("numbers are 16 lower-case hexadecimal digits")
		}
		f[i] = v
	}
	k = Key{Log: protocol.LogID(f[0]), Label: protocol.Epoch(f[1]), First: protocol.LSN(f[2]), Last: protocol.LSN(f[3]), Kind: Kind(s[68])}
	if k.Kind != Committed && k.Kind != Partly {
		return bad("kind")
	}
	if !lowerHex(s[70:]) {
		return bad("hash")
	}
	if _, err := hex.Decode(k.Hash[:], []byte(s[70:])); err != nil {
		return bad("hash")
	}
	if k.Log == 0 || k.Label == 0 || k.First == 0 || k.First > k.Last || k.Last > protocol.MaxLSN {
		return bad("log, label or LSNs out of range")
	}
	return k, nil
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}

func parseHex16(s string) (uint64, bool) {
	if len(s) != 16 || !lowerHex(s) {
		return 0, false
	}
	v, err := strconv.ParseUint(s, 16, 64)
	return v, err == nil
}

// KeyString returns the full key of k in this archive.
func (a *Archive) KeyString(k Key) string { return a.prefix + k.name() }

// ParseKey parses a full key of this archive; everything else is an error.
func (a *Archive) ParseKey(s string) (Key, error) {
	name, ok := strings.CutPrefix(s, a.prefix)
	if !ok {
		return Key{}, fmt.Errorf("archive: key %q does not begin with %q", s, a.prefix)
	}
	return parseName(name)
}

// logPrefix is what all keys of a log begin with.
func (a *Archive) logPrefix(log protocol.LogID) string {
	return a.prefix + log.String() + "/"
}

// before returns a string that sorts behind every key of label with a smaller first LSN and before every key with this
// one or a higher one. It is no key itself; it serves as the startAfter of a listing.
func (a *Archive) before(log protocol.LogID, label protocol.Epoch, first protocol.LSN) string {
	return fmt.Sprintf("%s%016x/%016x", a.logPrefix(log), uint64(label), uint64(first))
}
