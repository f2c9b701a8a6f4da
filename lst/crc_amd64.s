#include "textflag.h"

// func hasCRC32C() bool
TEXT ·hasCRC32C(SB), NOSPLIT, $0-1
	MOVL $1, AX
	XORL CX, CX
	CPUID
	SHRL $20, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET

// func crc32c1(p *byte, n int) uint32
TEXT ·crc32c1(SB), NOSPLIT, $0-20
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	MOVL $-1, AX
	MOVQ CX, R9
	SHRQ $3, R9
	JZ   rest

words:
	CRC32Q (SI), AX
	ADDQ   $8, SI
	DECQ   R9
	JNZ    words

rest:
	ANDQ $7, CX
	JZ   done
	CMPQ CX, $4
	JLT  bytes
	CRC32L (SI), AX
	ADDQ   $4, SI
	SUBQ   $4, CX
	JZ     done

bytes:
	CRC32B (SI), AX
	INCQ   SI
	DECQ   CX
	JNZ    bytes

done:
	NOTL AX
	MOVL AX, ret+16(FP)
	RET

// func crc32c3(a, b, c *byte, n int) (x, y, z uint32)
TEXT ·crc32c3(SB), NOSPLIT, $0-44
	MOVQ a+0(FP), SI
	MOVQ b+8(FP), DI
	MOVQ c+16(FP), R8
	MOVQ n+24(FP), CX
	MOVL $-1, AX
	MOVL $-1, BX
	MOVL $-1, DX
	MOVQ CX, R9
	SHRQ $3, R9
	JZ   rest

words:
	CRC32Q (SI), AX
	CRC32Q (DI), BX
	CRC32Q (R8), DX
	ADDQ   $8, SI
	ADDQ   $8, DI
	ADDQ   $8, R8
	DECQ   R9
	JNZ    words

rest:
	ANDQ $7, CX
	JZ   done

bytes:
	CRC32B (SI), AX
	CRC32B (DI), BX
	CRC32B (R8), DX
	INCQ   SI
	INCQ   DI
	INCQ   R8
	DECQ   CX
	JNZ    bytes

done:
	NOTL AX
	NOTL BX
	NOTL DX
	MOVL AX, x+32(FP)
	MOVL BX, y+36(FP)
	MOVL DX, z+40(FP)
	RET
