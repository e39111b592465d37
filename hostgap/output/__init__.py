"""Writers: one file per output format."""
