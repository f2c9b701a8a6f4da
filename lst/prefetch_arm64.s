#include "textflag.h"

// func prefetch(p unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET

// func pause()
TEXT ·pause(SB), NOSPLIT, $0-0
	MOVD $8, R0

again:
	YIELD
	SUBS $1, R0
	BNE  again
	RET
