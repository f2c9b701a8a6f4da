package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/btrlog/btrlog/internal/protocol"
)

// A pack holds stretches of many logs in one object, so that ten thousand idle logs do not cost ten thousand PUTs a minute.
// Each member is a whole object of its stretch, as Flush writes one; a directory behind the members, sorted by log,
// says where each stands. docs/FORMAT-ARCHIVE.md draws it.
//
//	AP1  A pack's name contains a hash over its directory, and the directory contains each member's hash: like a segment's
//	     name it determines every record and its place (AR1), so "exists" means "holds exactly this".
//	AP2  All members are of kind Committed: the listing and the directory are proof enough (AR3).
//	AP3  A pack is never replaced. Merging writes new packs of the next level, the last of which names its sources; they are
//	     deleted when that one has been there for a while, so that a listing that lags shows the one or the other. A listing
//	     goes through the levels upwards, so that whoever misses a source finds what replaced it.
//	AP4  A member holds LSNs of one label without a hole, like a segment (AR5), but one that merging made may lie in
//	     several segments.

const (
	packFormatV1  = 1 // no member is compressed
	packFormatV2  = 2 // the directory says of each member its compression and the length of its uncompressed block
	packHeadMagic = "BTRLGPCK"
	packTailMagic = "BTRLGPKE"
	packHeadBytes = 16
	memberBytes   = 72
	packTailBytes = 56
	// blockMembers is how many directory entries one checksum covers, and what a lookup of one log reads at least.
	blockMembers = 64
	// MaxPackBytes is where a pack is cut. The member that reaches it still goes in.
	MaxPackBytes = 16 << 20
	// maxPackMembers bounds the directory of one pack to 18 MiB.
	maxPackMembers = 1 << 18
	// maxPackSources bounds the packs that one names as replaced.
	maxPackSources = 2 * mergeFan
	// maxPackObject bounds what any pack can be in bytes: nobody allocates more on a name's or a trailer's word.
	maxPackObject = MaxPackBytes + MaxContentBytes + maxPackMembers*(memberBytes+1) + 1<<20
)

// An entry of version 2 has offsets in 32 bits.
const _ = uint32(maxPackObject)

// packKey names a pack:
//
//	<root>/pack/<level 2 hex>/<lowest log 16 hex>-<highest log 16 hex>-<members 8 hex>-<hash 32 hex>
//
// The level is how often what it holds was merged. The logs in the name spare a reader of one log most packs.
type packKey struct {
	level   uint8
	lowest  protocol.LogID
	highest protocol.LogID
	members uint32
	hash    [HashBytes]byte
}

const packNameBytes = 2 + 1 + 16 + 1 + 16 + 1 + 8 + 1 + 2*HashBytes

func (k packKey) name() string {
	return fmt.Sprintf("%02x/%016x-%016x-%08x-%x", k.level, uint64(k.lowest), uint64(k.highest), k.members, k.hash)
}

// packPrefix is what the keys of all packs begin with.
func (a *Archive) packPrefix() string { return strings.TrimSuffix(a.prefix, "arch/") + "pack/" }

func (a *Archive) packName(k packKey) string { return a.packPrefix() + k.name() }

// parsePackName is the strict inverse of packName.
func (a *Archive) parsePackName(s string) (packKey, error) {
	bad := func(what string) (packKey, error) {
		return packKey{}, fmt.Errorf("archive: %q is no pack's name: %s", s, what)
	}
	n, ok := strings.CutPrefix(s, a.packPrefix())
	switch {
	case !ok:
		return bad("prefix")
	case len(n) != packNameBytes:
		return bad(fmt.Sprintf("%d bytes, not %d", len(n), packNameBytes))
	case n[2] != '/' || n[19] != '-' || n[36] != '-' || n[45] != '-':
		return bad("separators")
	case !lowerHex(n[:2]) || !lowerHex(n[37:45]) || !lowerHex(n[46:]):
		return bad("numbers are lower-case hexadecimal digits")
	}
	level, _ := strconv.ParseUint(n[:2], 16, 8)
	lowest, ok1 := parseHex16(n[3:19])
	highest, ok2 := parseHex16(n[20:36])
	members, _ := strconv.ParseUint(n[37:45], 16, 32)
	k := packKey{level: uint8(level), lowest: protocol.LogID(lowest), highest: protocol.LogID(highest), members: uint32(members)}
	if _, err := hex.Decode(k.hash[:], []byte(n[46:])); err != nil || !ok1 || !ok2 {
		return bad("numbers are lower-case hexadecimal digits")
	}
	if k.lowest == 0 || k.lowest > k.highest || k.members == 0 || k.members > maxPackMembers {
		return bad("logs or members out of range")
	}
	return k, nil
}

// member is one entry of a pack's directory: the segment object that the pack holds at [offset, offset+size).
type member struct {
	key    Key
	offset int64
	size   int64
	// since is when the store first had it, in Unix seconds, for retention by age; 0 in a pack that was not made by merging,
	// where the pack's own time says it.
	since int64
	// compression of it, and content, the bytes of its uncompressed record block: 0 in a pack of version 1, which does not say.
	compression Compression
	content     int64
}

// plainBytes is about what the member takes uncompressed.
func (m *member) plainBytes() int64 { return max(m.size, m.content) }

func (m *member) append(b []byte, version uint16) []byte {
	le := binary.LittleEndian
	for _, v := range [...]uint64{uint64(m.key.Log), uint64(m.key.Label), uint64(m.key.First), uint64(m.key.Last)} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, uint32(m.offset))
	if version == packFormatV1 {
		b = le.AppendUint32(b, 0) // the upper half of the offset
	} else {
		b = le.AppendUint32(b, uint32(m.content))
	}
	b = le.AppendUint32(b, uint32(m.size))
	b = append(b, byte(m.key.Kind), byte(m.compression), 0, 0)
	b = le.AppendUint64(b, uint64(m.since))
	return append(b, m.key.Hash[:]...)
}

func parseMember(b []byte, end int64, version uint16) (member, error) {
	le := binary.LittleEndian
	m := member{key: Key{Log: protocol.LogID(le.Uint64(b)), Label: protocol.Epoch(le.Uint64(b[8:])), First: protocol.LSN(le.Uint64(b[16:])),
		Last: protocol.LSN(le.Uint64(b[24:])), Kind: Kind(b[44])}, offset: int64(le.Uint64(b[32:])), size: int64(le.Uint32(b[40:])), since: int64(le.Uint64(b[48:])), compression: Compression(b[45])}
	if version != packFormatV1 {
		m.offset, m.content = int64(le.Uint32(b[32:])), int64(le.Uint32(b[36:]))
	}
	copy(m.key.Hash[:], b[56:])
	k := &m.key
	switch {
	case k.Log == 0 || k.Label == 0 || k.First == 0 || k.First > k.Last || k.Last > protocol.MaxLSN || k.Kind != Committed || b[46]|b[47] != 0 ||
		version == packFormatV1 && m.compression != NoCompression || m.content > MaxContentBytes:
		return m, damage("directory", "entry out of range")
	case m.size < minObjectBytes || m.offset < packHeadBytes || m.offset > end-m.size || m.since < 0:
		return m, damage("directory", "entry lies outside of the pack")
	}
	return m, nil
}

// compareMembers is the order of a directory.
func compareMembers(a, b *member) int { return compareKeys(a.key, b.key) }

// packBuilder makes one pack. Members are added in the order of a directory.
type packBuilder struct {
	level   uint8
	body    []byte // header and members
	members []member
	sources [][HashBytes]byte // the packs that this one and those before it replace
}

func (p *packBuilder) begin(buf []byte, level uint8) {
	p.level, p.members, p.sources = level, p.members[:0], nil
	p.body = append(buf[:0], packHeadMagic...)
	p.body = append(p.body, make([]byte, packHeadBytes-len(p.body))...) // the version is filled in at the end
}

// version is the lowest that can say what the members are.
func (p *packBuilder) version() uint16 {
	for i := range p.members {
		if p.members[i].compression != NoCompression {
			return packFormatV2
		}
	}
	return packFormatV1
}

// added says that a body of the key was appended at offset.
func (p *packBuilder) added(k Key, offset int, since int64, c Compression, content int64) {
	p.members = append(p.members, member{key: k, offset: int64(offset), size: int64(len(p.body) - offset), since: since, compression: c, content: content})
}

func (p *packBuilder) full() bool {
	return len(p.body) >= MaxPackBytes || len(p.members) == maxPackMembers
}

// finish appends directory and trailer and returns the whole and its name.
func (p *packBuilder) finish() ([]byte, packKey) {
	le := binary.LittleEndian
	at, version := len(p.body), p.version()
	le.PutUint16(p.body[len(packHeadMagic):], version)
	k := packKey{level: p.level, lowest: p.members[0].key.Log, highest: p.members[len(p.members)-1].key.Log, members: uint32(len(p.members))}
	sum := sha256.New()
	var fences []byte
	for block := range slices.Chunk(p.members, blockMembers) {
		from := len(p.body)
		for i := range block {
			p.body = block[i].append(p.body, version)
		}
		sum.Write(p.body[from:])
		p.body = le.AppendUint32(p.body, crc(p.body[from:]))
		fences = le.AppendUint64(fences, uint64(block[0].key.Log))
	}
	from := len(p.body)
	for _, s := range p.sources {
		p.body = append(p.body, s[:]...)
	}
	sum.Write(p.body[from:])
	copy(k.hash[:], sum.Sum(nil))
	p.body = append(p.body, fences...)
	p.body = append(p.body, k.hash[:]...)
	for _, v := range [...]int{len(p.members), len(fences) / 8, len(p.sources), 0} {
		p.body = le.AppendUint32(p.body, uint32(v))
	}
	p.body = le.AppendUint64(p.body, uint64(at))
	p.body = le.AppendUint32(p.body, crc(p.body[from:]))
	p.body = le.AppendUint16(p.body, version)
	p.body = append(p.body, 0, 0)
	p.body = append(p.body, packTailMagic...)
	return p.body, k
}

// packTail is the parsed end of a pack.
type packTail struct {
	version   uint16
	directory int64 // offset of the first block
	members   int
	fences    []protocol.LogID // of each block, the log of its first entry
	sources   [][HashBytes]byte
}

// packTailSize returns how many bytes at the end of a pack are sources, fences and trailer.
func packTailSize(b []byte, k packKey, size int64) (int64, error) {
	le := binary.LittleEndian
	if len(b) < packTailBytes {
		return 0, damage("trailer", "pack is cut short")
	}
	b = b[len(b)-packTailBytes:]
	if string(b[48:]) != packTailMagic {
		return 0, damage("trailer", "no trailer of a pack")
	}
	if v := le.Uint16(b[44:]); v != packFormatV1 && v != packFormatV2 {
		return 0, versionError(v)
	}
	members, blocks, sources, at := le.Uint32(b[16:]), le.Uint32(b[20:]), le.Uint32(b[24:]), int64(le.Uint64(b[32:]))
	switch {
	case [HashBytes]byte(b[:HashBytes]) != k.hash || members != k.members:
		return 0, damage("trailer", "belongs to another pack")
	case blocks != (members+blockMembers-1)/blockMembers || sources > maxPackSources || at < packHeadBytes || at > size || b[28]|b[29]|b[30]|b[31]|b[46]|b[47] != 0 ||
		at+int64(members)*memberBytes+int64(blocks)*(4+8)+int64(sources)*HashBytes+packTailBytes != size:
		return 0, damage("trailer", "lengths do not add up to the size of the pack")
	}
	return int64(sources)*HashBytes + int64(blocks)*8 + packTailBytes, nil
}

// parsePackTail parses exactly packTailSize bytes.
func parsePackTail(b []byte) (*packTail, error) {
	le := binary.LittleEndian
	end := b[len(b)-packTailBytes:]
	if crc(b[:len(b)-packTailBytes+40]) != le.Uint32(end[40:]) {
		return nil, damage("trailer", "checksum")
	}
	t := &packTail{version: le.Uint16(end[44:]), directory: int64(le.Uint64(end[32:])), members: int(le.Uint32(end[16:]))}
	f := b[:len(b)-packTailBytes]
	for range le.Uint32(end[24:]) {
		t.sources = append(t.sources, [HashBytes]byte(f))
		f = f[HashBytes:]
	}
	for ; len(f) > 0; f = f[8:] {
		t.fences = append(t.fences, protocol.LogID(le.Uint64(f)))
	}
	if !slices.IsSorted(t.fences) {
		return nil, damage("trailer", "fences out of order")
	}
	return t, nil
}

// block returns where block i stands.
func (t *packTail) block(i int) (offset, size int64) {
	n := min(blockMembers, t.members-i*blockMembers)
	return t.directory + int64(i)*(blockMembers*memberBytes+4), int64(n)*memberBytes + 4
}

// parseBlock parses the bytes of one block.
func (t *packTail) parseBlock(i int, b []byte) ([]member, error) {
	n := len(b) - 4
	if crc(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, damage("directory", fmt.Sprintf("checksum of block %d", i))
	}
	members := make([]member, 0, n/memberBytes)
	for b = b[:n]; len(b) > 0; b = b[memberBytes:] {
		m, err := parseMember(b, t.directory, t.version)
		if err != nil {
			return nil, err
		}
		if k := len(members); k > 0 && compareMembers(&members[k-1], &m) > 0 {
			return nil, damage("directory", "entries out of order")
		}
		members = append(members, m)
	}
	if members[0].key.Log != t.fences[i] {
		return nil, damage("directory", "block is not the one of its fence")
	}
	return members, nil
}
