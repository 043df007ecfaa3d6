"""The http handler against real sockets: what is sent, what answers mean, what goes wrong."""
