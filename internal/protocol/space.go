package protocol

// Space says for what a shard has room. Promises, activation, watermarks and reads are never refused for want of it (R15).
type Space uint8

const (
	// SpaceFree: for all records.
	SpaceFree Space = iota
	// SpaceRepairs: for the repairs of openers alone. [R, T] is at most the window of a log, and without it on Qw nodes no
	// open could complete while its nodes are full. Appends and copies are refused with StatusNoSpace (P14: a refusal that
	// ends by itself): a copy is for a change of the nodes, which may be all that is not archived, and wants nodes with room.
	SpaceRepairs
	// SpaceNone: for no record.
	SpaceNone
)

// roomFor reports whether there is room for records of a kind.
func (s Space) roomFor(k AppendKind) bool {
	return s == SpaceFree || s == SpaceRepairs && k == AppendRepair
}
