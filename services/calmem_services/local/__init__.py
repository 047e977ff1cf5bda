"""Everything on one machine: embedded servers and a supervisor for the processes."""
