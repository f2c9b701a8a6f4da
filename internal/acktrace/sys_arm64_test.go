package acktrace

const sysSendmmsg = 269
