"""What a C program imports to get a server: fills the table, and switches the log on as Triton's library does."""

from repoagent.server.enums import LogLevel
from repoagent.server.logs import server_log
from repoagent_capi import crossing

crossing.ready()
for _level in (LogLevel.INFO, LogLevel.WARN, LogLevel.ERROR):
    server_log().enable(_level, True)
