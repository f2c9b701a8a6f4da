#!/usr/bin/env bash
# Makes write-ahead logs with a real PostgreSQL server.
#
#   demo/make-sample.sh [pgbench] [directory]   the demo's sample input: what the server
#                                               writes while pgbench runs on it
#                                               (default directory: demo/testdata)
#   demo/make-sample.sh crash [directory]       a test input of package pgwal: what the
#                                               server writes when it crashes inside a
#                                               large record (demo/pgwal/testdata)
#
# Needs PostgreSQL 15 or later (initdb, pg_ctl, psql, pgbench, pg_waldump), gzip,
# sha256sum and awk. The PostgreSQL programs are taken from $PG_BINDIR, else from
# `pg_config --bindir`, else from PATH. PostgreSQL refuses to run as root: when
# started by root, the script runs it as the user named by $PG_USER (postgres).
#
# The pgbench run is bounded by a number of transactions, not by time, and has a fixed
# random seed. Two runs still differ in bytes: a write-ahead log holds wall-clock
# times, the cluster's random identifier and the interleaving of the clients. What a
# log holds is written next to it, as told by pg_waldump.
set -euo pipefail

scale=1           # pgbench -i: 100,000 accounts, loaded by COPY (large records)
clients=4
threads=2
transactions=1200 # per client and run
seed=42
limit_bytes=3900000

fail() { echo "make-sample: $*" >&2; exit 1; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kind=pgbench
if [ "${1:-}" = pgbench ] || [ "${1:-}" = crash ]; then kind=$1; shift; fi
case $kind in
pgbench) out=${1:-$here/testdata} ;;
crash) out=${1:-$here/pgwal/testdata} ;;
esac
[ -d "$out" ] || fail "$out is not a directory"
out=$(cd "$out" && pwd)

bindir=${PG_BINDIR:-}
if [ -z "$bindir" ] && command -v pg_config >/dev/null; then bindir=$(pg_config --bindir); fi
tool() { # tool NAME: the path of a PostgreSQL program
	if [ -n "$bindir" ] && [ -x "$bindir/$1" ]; then echo "$bindir/$1"; return; fi
	command -v "$1" || fail "no $1 in ${bindir:-PATH}: install PostgreSQL 15 or later, or set PG_BINDIR"
}
postgres=$(tool postgres)
initdb=$(tool initdb)
pg_ctl=$(tool pg_ctl)
psql=$(tool psql)
pgbench=$(tool pgbench)
pg_waldump=$(tool pg_waldump)

server_version=$("$postgres" --version)
major=$(sed -E 's/^[^0-9]*([0-9]+).*/\1/' <<<"$server_version")
[ "$major" -ge 15 ] || fail "$server_version is too old: PostgreSQL 15 or later is needed"

as=()
tmp=$(mktemp -d "${TMPDIR:-/tmp}/pgwal-sample.XXXXXX")
cleanup() {
	# pg_ctl signals the process whose pid stands in our own data directory, and no other.
	if [ -f "$tmp/data/postmaster.pid" ]; then
		"${as[@]}" "$pg_ctl" -D "$tmp/data" -m fast -w -t 60 stop >/dev/null ||
			"${as[@]}" "$pg_ctl" -D "$tmp/data" -m immediate -w -t 30 stop >/dev/null || true
	fi
	rm -rf "$tmp"
}
trap cleanup EXIT
if [ "$(id -u)" = 0 ]; then
	as=(runuser -u "${PG_USER:-postgres}" --)
	chown "${PG_USER:-postgres}" "$tmp"
fi
cd "$tmp" # the server's user may not be able to enter the caller's directory

sql() { timeout 120 "${as[@]}" "$psql" -X -A -t -q -v ON_ERROR_STOP=1 -h "$tmp" -d postgres "$@"; }
run() { # run SEED: one bounded pgbench run
	timeout 300 "${as[@]}" "$pgbench" -n -h "$tmp" -c $clients -j $threads -t $transactions --random-seed="$1" postgres >>"$tmp/pgbench.log" 2>&1 ||
		fail "pgbench failed: $(tail -n 3 "$tmp/pgbench.log")"
}

# start_server SEGMENT_MB: a new cluster and its server, on a socket in $tmp only.
# wal_keep_size and max_wal_size keep every segment in pg_wal, where collect finds
# them. Everything else that shapes the log is the server's default: full_page_writes
# on, wal_compression off, wal_level replica, autovacuum on.
start_server() {
	"${as[@]}" "$initdb" -D "$tmp/data" -A trust --no-locale -E UTF8 --wal-segsize="$1" >"$tmp/initdb.log" 2>&1 ||
		fail "initdb failed: $(tail -n 3 "$tmp/initdb.log")"
	"${as[@]}" "$pg_ctl" -D "$tmp/data" -w -t 60 -l "$tmp/server.log" -o \
		"-c listen_addresses='' -c unix_socket_directories='$tmp' -c wal_keep_size=1GB -c max_wal_size=2GB -c checkpoint_timeout=1h" \
		start >/dev/null || fail "the server did not start: $(tail -n 3 "$tmp/server.log")"
	# The log to collect begins with a fresh segment: what initdb wrote stays out.
	before=$(sql -c "SELECT pg_walfile_name(pg_switch_wal())")
}

# collect stops the server and leaves the log from the segment after $before on in
# $tmp/stream, pg_waldump's account of it in $tmp/dump, and in $tmp/records one line
# for each record: lsn prev xid length.
collect() {
	# pg_switch_wal answers the end of the switch record that closes the last segment;
	# what follows it in that segment is filling.
	IFS='|' read -r end_lsn last <<<"$(sql -c "SELECT lsn, pg_walfile_name(lsn) FROM pg_switch_wal() AS lsn")"
	segment_bytes=$(sql -c "SELECT setting FROM pg_settings WHERE name = 'wal_segment_size'")
	block_bytes=$(sql -c "SELECT setting FROM pg_settings WHERE name = 'wal_block_size'")
	"${as[@]}" "$pg_ctl" -D "$tmp/data" -m fast -w -t 60 stop >/dev/null || fail "the server did not stop"

	# Segments are named so that their order is the order of their names. Those after
	# `last` are newer, or recycled files with old content.
	segments=()
	for path in "$tmp"/data/pg_wal/????????????????????????; do
		name=$(basename "$path")
		if [[ "$name" > "$before" && ! "$name" > "$last" ]]; then segments+=("$path"); fi
	done
	[ ${#segments[@]} -gt 0 ] || fail "no segment between $before and $last in pg_wal"
	first=$(basename "${segments[0]}")

	# pg_waldump walks the segments record by record: it fails on a gap, and it is the
	# independent witness that the tests of package pgwal compare with.
	"$pg_waldump" -p "$tmp/data/pg_wal" "$first" "$last" >"$tmp/dump" || fail "pg_waldump rejects the segments"
	sed -E 's#^rmgr: .* len \(rec/tot\): +[0-9]+/ *([0-9]+), tx: +([0-9]+), lsn: ([0-9A-F]+/[0-9A-F]+), prev ([0-9A-F]+/[0-9A-F]+), .*#\3 \4 \2 \1#' \
		"$tmp/dump" >"$tmp/records"
	if grep -qvE '^[0-9A-F]+/[0-9A-F]{8} [0-9A-F]+/[0-9A-F]{8} [0-9]+ [0-9]+$' "$tmp/records"; then fail "pg_waldump prints a format this script does not know"; fi
	tail -n 1 "$tmp/dump" | grep -q 'SWITCH' || fail "the last record is not the switch record"

	cat "${segments[@]}" >"$tmp/stream"
	# Trimmed at the position, not at the zeros: a record may end in zeros of its own.
	tail_bytes=$(((segment_bytes - 16#${end_lsn#*/} % segment_bytes) % segment_bytes))
	stream_bytes=$((${#segments[@]} * segment_bytes - tail_bytes))
	truncate -s $stream_bytes "$tmp/stream"
}

if [ "$kind" = crash ]; then
	start_server 1
	sql -c "CREATE TABLE t (a int)"
	for _ in 1 2; do
		sql -c "INSERT INTO t SELECT generate_series(1, 20)"
		sql -c "SELECT pg_logical_emit_message(true, 'whole', repeat('abcdefgh', 200000))" >"$tmp/message"
		count=$(find "$tmp/data/pg_wal" -type f | wc -l)
		sql -c "SELECT pg_backend_pid()" -c "SELECT pg_logical_emit_message(false, 'torn', repeat('abcdefgh', 25000000))" >"$tmp/backend" 2>"$tmp/message" &
		client=$!
		# Segments appear while the server writes the message, which takes it some
		# hundred milliseconds. Its backend is killed once a few are there; the server
		# then stops its other processes, recovers and serves again.
		deadline=$((SECONDS + 60))
		until [ "$(find "$tmp/data/pg_wal" -type f | wc -l)" -gt $((count + 4)) ]; do
			[ $SECONDS -lt $deadline ] || fail "no segment appeared within 60 s of writing a large record"
		done
		kill -KILL "$(head -n 1 "$tmp/backend")" || fail "the server finished its record before it was killed; try again"
		wait $client || true # it has lost its connection
		until sql -c "SELECT 1" >"$tmp/message" 2>&1; do
			[ $SECONDS -lt $deadline ] || fail "the server did not recover within 60 s: $(cat "$tmp/message")"
		done
	done
	sql -c "INSERT INTO t VALUES (1)"
	collect
	# One line for each abandoned record: where it began, and the record that says so.
	sed -nE 's#.* lsn: ([0-9A-F]+/[0-9A-F]+), .*OVERWRITE_CONTRECORD lsn ([0-9A-F]+/[0-9A-F]+);.*#\2 \1#p' "$tmp/dump" >"$tmp/abandoned"
	[ -s "$tmp/abandoned" ] || fail "the server finished its records before it was killed; try again"
	gzip -9 -n -c "$tmp/stream" >"$tmp/crash-wal.gz"
	install -m 644 "$tmp/crash-wal.gz" "$out/crash-wal.gz"
	install -m 644 "$tmp/records" "$out/crash-wal.records"
	install -m 644 "$tmp/abandoned" "$out/crash-wal.abandoned"
	echo "$(wc -l <"$tmp/records") records, $(wc -l <"$tmp/abandoned") abandoned, $stream_bytes bytes"
	exit
fi

start_server 16
timeout 300 "${as[@]}" "$pgbench" -i -s $scale -q -h "$tmp" postgres >"$tmp/pgbench.log" 2>&1 ||
	fail "pgbench -i failed: $(tail -n 3 "$tmp/pgbench.log")"
# After a checkpoint the first change of a page logs the whole page: records of 8 KiB.
sql -c "CHECKPOINT"
run $seed
# A GIN index is logged when it is built, many pages to a record: one of these
# is larger than any datagram.
sql -c "CREATE INDEX pgbench_history_words ON pgbench_history
	USING gin (to_tsvector('simple', aid || ' ' || delta || ' ' || bid)) WHERE tid <= 5"
run $((seed + 1))
collect
gzip -9 -n -c "$tmp/stream" >"$tmp/pgbench-wal.gz" # -n: no name and time in the file
compressed_bytes=$(stat -c %s "$tmp/pgbench-wal.gz")
[ "$compressed_bytes" -le $limit_bytes ] || fail "the compressed sample has $compressed_bytes bytes, more than $limit_bytes: lower scale or transactions"

# Percentiles by nearest rank: the ceil(n * p)-th smallest.
sort -n -k4,4 "$tmp/records" | awk '{ size[NR] = $4; sum += $4; if ($4 > 8192) above++ }
	END {
		printf "  \"record_bytes\": %d,\n", sum
		printf "  \"record_size_p50_bytes\": %d,\n", size[int((NR + 1) / 2)]
		printf "  \"record_size_p99_bytes\": %d,\n", size[int((NR * 99 + 99) / 100)]
		printf "  \"record_size_max_bytes\": %d,\n", size[NR]
		printf "  \"records_above_8192_bytes\": %d,\n", above
	}' >"$tmp/sizes"
cat >"$tmp/manifest.json" <<EOF
{
  "server": "$server_version",
  "workload": "pgbench -i -s $scale; CHECKPOINT; pgbench -c $clients -j $threads -t $transactions --random-seed=$seed; CREATE INDEX ... USING gin; the same pgbench with --random-seed=$((seed + 1))",
  "segments": ${#segments[@]},
  "segment_size_bytes": $segment_bytes,
  "block_size_bytes": $block_bytes,
  "stream_bytes": $stream_bytes,
  "stream_sha256": "$(sha256sum <"$tmp/stream" | cut -d' ' -f1)",
  "compressed_bytes": $compressed_bytes,
  "records": $(wc -l <"$tmp/records"),
$(cat "$tmp/sizes")
  "first_lsn": "$(head -n 1 "$tmp/records" | cut -d' ' -f1)",
  "last_lsn": "$(tail -n 1 "$tmp/records" | cut -d' ' -f1)",
  "end_lsn": "$end_lsn",
  "records_sha256": "$(sha256sum <"$tmp/records" | cut -d' ' -f1)"
}
EOF
install -m 644 "$tmp/pgbench-wal.gz" "$tmp/manifest.json" "$out"
cat "$out/manifest.json"
