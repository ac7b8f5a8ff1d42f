"""Incidents: every exposed key of a site once, with where and who, a clock, and pages to read.

Events go in (`ledger.fold`), a person's decisions go in (`ledger.act`), and everything shown - a list, a mail, a
report, a page - is worked out from those two by pure functions (`workflow`, `report.figures`).
"""
