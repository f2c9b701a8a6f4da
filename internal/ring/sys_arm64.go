package ring

import "syscall"

const sysSendmmsg = syscall.SYS_SENDMMSG
