"""Several worker processes on one database: who does what, who tells whom. On SQLite there is only one."""
