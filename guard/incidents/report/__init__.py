"""Reports: figures worked out of the ledger (`figures`), and the forms in which they are given."""
