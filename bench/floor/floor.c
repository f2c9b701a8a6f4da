// The floor of a quorum append in C: what the kernel and the device take, without any protocol. The benchmarks compare the floor
// that is written in Go with this one, so that the language is no excuse.
//
//   cc -O2 -o floor floor.c && ./floor NODES QUORUM DIRECTORY
//
// NODES processes each receive a datagram on the loopback, write one block of 4096 bytes to a preallocated, zeroed file
// (O_DIRECT and O_DSYNC; without O_DIRECT where the file system has none), and answer. For every line with a number that is
// read, as many rounds are made, one at a time, or fewer when two seconds are over: a datagram of 160 bytes to every process, and
// QUORUM answers. The times in nanoseconds are written as one line.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { max_nodes = 16, block = 4096, file_bytes = 64 << 20, request = 160, answer = 24 };
static const int64_t block_ns = 2000000000LL;

static void die(const char *what) {
	fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// bound returns a socket at a free port, and that.
static int bound(struct sockaddr_in *at) {
	socklen_t n = sizeof *at;
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	memset(at, 0, sizeof *at);
	at->sin_family = AF_INET;
	at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (s < 0 || bind(s, (struct sockaddr *)at, n) < 0 || getsockname(s, (struct sockaddr *)at, &n) < 0)
		die("socket");
	return s;
}

static int prepare(const char *path) {
	static char zero[1 << 20];
	int f = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
	if (f < 0)
		die(path);
	for (int i = 0; i < file_bytes; i += sizeof zero)
		if (write(f, zero, sizeof zero) != sizeof zero)
			die(path);
	if (fsync(f) < 0)
		die(path);
	close(f);
	if ((f = open(path, O_RDWR | O_DIRECT | O_DSYNC)) < 0 && (f = open(path, O_RDWR | O_DSYNC)) < 0)
		die(path);
	return f;
}

static void serve(int s, int f) {
	char in[2048], *out;
	off_t off = 0;
	if (posix_memalign((void **)&out, block, block))
		die("memory");
	memset(out, 0, block);
	for (;;) {
		struct sockaddr_in from;
		socklen_t n = sizeof from;
		ssize_t got = recvfrom(s, in, sizeof in, 0, (struct sockaddr *)&from, &n);
		if (got < 0)
			die("receive");
		memcpy(out, in, got);
		if (pwrite(f, out, block, off) != block)
			die("write");
		off = (off + block) % file_bytes;
		if (sendto(s, in, answer, 0, (struct sockaddr *)&from, n) < 0)
			die("answer");
	}
}

int main(int argc, char **argv) {
	int nodes = argc == 4 ? atoi(argv[1]) : 0, quorum = argc == 4 ? atoi(argv[2]) : 0;
	struct sockaddr_in at[max_nodes], own;
	if (nodes < 1 || nodes > max_nodes || quorum < 1 || quorum > nodes) {
		fprintf(stderr, "usage: floor NODES QUORUM DIRECTORY\n");
		return 2;
	}
	for (int i = 0; i < nodes; i++) {
		char path[4096];
		int s = bound(&at[i]), f;
		snprintf(path, sizeof path, "%s/c%d", argv[3], i);
		f = prepare(path);
		switch (fork()) {
		case -1:
			die("fork");
		case 0:
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			serve(s, f);
		}
		close(s);
		close(f);
	}
	int s = bound(&own);
	struct timeval limit = {1, 0};
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	int64_t id = 0;
	printf("ready\n");
	fflush(stdout);
	for (int count; scanf("%d", &count) == 1;) {
		int64_t *took = calloc(count, sizeof *took);
		int done = 0;
		for (int64_t first = now(); done < count && now() - first < block_ns; done++) {
			char out[request] = {0}, in[2048];
			int64_t began = now();
			// The answers of a server that was behind may fill the socket, and those that count are dropped: ask again.
			for (int tries = 0, got = 0; got < quorum; got = 0) {
				if (tries++ > 10)
					die("no answer");
				id++;
				memcpy(out, &id, sizeof id);
				for (int j = 0; j < nodes; j++)
					if (sendto(s, out, sizeof out, 0, (struct sockaddr *)&at[j], sizeof at[j]) < 0)
						die("send");
				while (got < quorum && recv(s, in, sizeof in, 0) >= (ssize_t)sizeof id)
					got += !memcmp(in, &id, sizeof id);
				if (got == quorum)
					break;
			}
			took[done] = now() - began;
		}
		for (int i = 0; i < done; i++)
			printf("%lld ", (long long)took[i]);
		printf("\n");
		fflush(stdout);
		free(took);
	}
	return 0;
}
