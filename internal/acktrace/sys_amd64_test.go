package acktrace

const sysSendmmsg = 307
