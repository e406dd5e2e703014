"""Worker processes: how they are started, forked, supervised and talked to. This package imports no check.

Read it in this order: ``roles`` (what a worker may be), ``spawn`` and ``forking`` (how processes begin),
``fork_server_process`` and ``fork_server_client`` (the two sides of a fork server), ``pool`` (the servers of this
process), ``messages`` and ``wire`` (the two protocols), ``supervise`` (time limits, and how a worker ended).
``daemon/`` forks whole commands. ``spawn`` and ``daemon/client`` run before a command has imported torch, and do not
import it.
"""
