"""The process: signals, logs, memory, systemd, sockets, the watchdog, reloading."""
