"""What guard writes into files of others: start-up files, agents' settings, git hooks; taken back byte for byte."""
