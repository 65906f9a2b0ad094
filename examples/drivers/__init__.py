"""Programs that play games themselves (docs/drivers.md)."""
