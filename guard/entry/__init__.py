"""Where people and agents come in: login shells, ssh, shims. Nothing here may ever lock a person out of a shell."""
