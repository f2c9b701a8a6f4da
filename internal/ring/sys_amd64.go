package ring

// sysSendmmsg is younger than the frozen table of package syscall for this architecture.
const sysSendmmsg = 307
