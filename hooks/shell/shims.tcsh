# guard: shims of agents stand first on PATH; an alias finds them where nvm or `module load` put something before them.
# Written by `guard shim install`; see docs/shells.md.
if ("$path[1]" != @FOLDER@) set path = (@FOLDER@ $path:q)
@ALIASES@
