#include "textflag.h"

// func prefetch(p unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func pause()
TEXT ·pause(SB), NOSPLIT, $0-0
	MOVL $8, CX

again:
	PAUSE
	DECL CX
	JNZ  again
	RET
