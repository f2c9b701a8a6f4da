package archive

// FormatVersion is the version of the segment objects that this program writes, and the newest that it reads.
const FormatVersion = newestFormat
