"""Executes a command under what a unit for systemd takes from a service: capabilities, privileges to be gained, system
calls, families of sockets, memory that is written and executed (systemd.exec(5)).

    under.py UNIT COMMAND...
"""

import ctypes
import errno
import os
import subprocess
import sys

import seccomp

CAPABILITIES = (
    "chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service "
    "net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin "
    "sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override "
    "mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore"
).split()
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17, "AF_XDP": 44}
PR_CAPBSET_READ, PR_CAPBSET_DROP = 23, 24
HELD = (
    "NoNewPrivileges CapabilityBoundingSet MemoryDenyWriteExecute RestrictRealtime RestrictSUIDSGID "
    "RestrictAddressFamilies SystemCallFilter SystemCallErrorNumber UMask"
)
# They give, or say how it is started; or take what nothing of ours asks for (another personality, another architecture's
# calls, another's keys).
LEFT = (
    "Type NotifyAccess ExecStart Restart RestartSec KillMode TimeoutStopSec FileDescriptorStoreMax LimitNOFILE Delegate "
    "TasksMax RuntimeDirectory RuntimeDirectoryPreserve StateDirectory StateDirectoryMode OOMScoreAdjust LockPersonality "
    "SystemCallArchitectures KeyringMode"
)


def settings(file):
    """Its settings; one that is understood by nobody here is an error, for it would be held by nobody."""
    read = {}
    with open(file, encoding="utf-8") as lines:
        section = None
        for line in map(str.strip, lines):
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line and not line.startswith("#"):
                name, value = line.split("=", 1)
                read[name] = value
    unknown = set(read) - set(HELD.split()) - set(LEFT.split())
    assert not unknown, unknown
    return read


def calls(words):
    """The names of system calls, of sets (@clock) too."""
    for word in words:
        if not word.startswith("@"):
            yield word
            continue
        said = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", word], capture_output=True, text=True, check=True)
        inner = [line.strip() for line in said.stdout.splitlines() if line.startswith("    ")]
        yield from calls(name for name in inner if name and not name.startswith("#"))


def main():
    unit, command = settings(sys.argv[1]), sys.argv[2:]
    denies, family = seccomp.ERRNO(errno.EPERM), seccomp.ERRNO(errno.EAFNOSUPPORT)
    filters = seccomp.SyscallFilter(seccomp.ALLOW)
    denied = unit["SystemCallFilter"]
    assert denied.startswith("~") and unit["NoNewPrivileges"] == "yes"
    for name in set(calls(denied[1:].split())):
        try:
            filters.add_rule(denies, name)
        except (RuntimeError, ValueError):
            pass  # another processor's
    allowed = {FAMILIES[name] for name in unit["RestrictAddressFamilies"].split()}
    for number in set(range(46)) - allowed:
        filters.add_rule(family, "socket", seccomp.Arg(0, seccomp.EQ, number))
    filters.add_rule(family, "socket", seccomp.Arg(0, seccomp.GT, 45))
    if unit["MemoryDenyWriteExecute"] == "yes":
        both = seccomp.Arg(2, seccomp.MASKED_EQ, 6, 6)
        executes = seccomp.Arg(2, seccomp.MASKED_EQ, 4, 4)
        filters.add_rule(denies, "mmap", both)
        filters.add_rule(denies, "mprotect", executes)
        filters.add_rule(denies, "pkey_mprotect", executes)
    if unit["RestrictRealtime"] == "yes":
        for policy in (1, 2, 6):
            filters.add_rule(denies, "sched_setscheduler", seccomp.Arg(1, seccomp.EQ, policy))
    if unit["RestrictSUIDSGID"] == "yes":
        for bit in (0o4000, 0o2000):
            filters.add_rule(denies, "chmod", seccomp.Arg(1, seccomp.MASKED_EQ, bit, bit))
            filters.add_rule(denies, "fchmod", seccomp.Arg(1, seccomp.MASKED_EQ, bit, bit))
            filters.add_rule(denies, "fchmodat", seccomp.Arg(2, seccomp.MASKED_EQ, bit, bit))
    os.umask(int(unit["UMask"], 8))
    kept = {name.removeprefix("CAP_").lower() for name in unit["CapabilityBoundingSet"].split()}
    assert kept <= set(CAPABILITIES), kept
    libc = ctypes.CDLL(None, use_errno=True)
    for number, name in enumerate(CAPABILITIES):
        if name not in kept and libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            assert libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    # It takes the right to gain privileges with it.
    filters.load()
    os.execvp(command[0], command)


main()
