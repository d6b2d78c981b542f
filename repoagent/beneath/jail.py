"""A jail for a process that may be taken over: Landlock for files, seccomp for system calls, limits for sizes.

Enter it after heavy imports and before foreign bytes, while there is one thread: Landlock holds for the thread that
asks, and for what that starts later. Nothing leaves it. Nothing here imports more than ctypes.
"""

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from repoagent.errors import UnsupportedError

_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> its column in :data:`CALLS`, and its name in a filter."""
CALLS: Final[Mapping[str, Mapping[str, tuple[int | None, int | None]]]] = {
    "network": {
        "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
        "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    },
    "programs": {
        "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
        "unshare": (272, 97), "setns": (308, 268), "memfd_create": (319, 279),
    },
    "processes": {
        "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
        "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
        "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271), "process_madvise": (440, 440), "process_mrelease": (448, 448),
        "kcmp": (312, 272), "setpriority": (141, 140), "ioprio_set": (251, 30),
        "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
        "sched_setaffinity": (203, 122), "migrate_pages": (256, 238), "move_pages": (279, 239),
        "setrlimit": (160, 164), "setpgid": (109, 154), "shmget": (29, 194), "shmat": (30, 196),
        "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
        "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
        "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    },
    # Landlock leaves these to the rights of the user.
    "attributes": {
        "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
        "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
        "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
        "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
        "truncate": (76, 45), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
        "fanotify_init": (300, 262), "inotify_add_watch": (254, 27),
    },
    "machine": {
        "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
        "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "open_tree": (428, 428),
        "move_mount": (429, 429), "mount_setattr": (442, 442), "bpf": (321, 280), "io_uring_setup": (425, 425),
        "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "userfaultfd": (323, 282),
        "perf_event_open": (298, 241), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
        "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
        "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
        "quotactl": (179, 60), "syslog": (103, 116), "sethostname": (170, 161), "setdomainname": (171, 162),
        "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
        "clock_adjtime": (305, 266), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
        "vhangup": (153, 58), "lookup_dcookie": (212, 18),
    },
}  # fmt: skip
"""Group -> the system calls that :func:`enter_calls` denies -> their numbers on x86-64 and on aarch64."""
_CLONE: Final = (56, 220)
_PRLIMIT: Final = (302, 261)
_FCNTL: Final = (72, 25)
_CLONE3: Final = 435
_OPEN: Final = ((2, None), (257, 56))
"""open and openat; the flags are the second and the third argument."""
_OPENAT2: Final = 437
_IOCTL: Final = (16, 29)
_HARMLESS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""What libraries ask of files: whether it is a terminal, its size, how much there is to read; blocking, inheritance."""
_LAST_KNOWN: Final = 451
"""No library needs a later call; what one may do to others is not looked into."""

_READ: Final = (1 << 2) | (1 << 3)
_CHANGE: Final = (1 << 1) | (1 << 4) | (1 << 5) | (1 << 7) | (1 << 8) | (1 << 14)
"""Write, remove files and directories, make both, truncate; no link, socket, pipe or device."""
_OF_A_FILE: Final = (1 << 1) | (1 << 2) | (1 << 14)
_ACCESSES: Final = {1: 13, 2: 14, 3: 15, 4: 15}
"""Version of Landlock -> how many kinds of access to files it knows; 16 from version 5 on."""

_MACHINES: Final = (16, 17, 19, 21, 27, 38, 39, 40)
"""Capabilities over the machine and the processes of others: modules, ports, ptrace, administration, devices,
performance (with which environments can be read), BPF, checkpoints."""
_NO_FILES: Final = tuple(number for number in range(64) if number not in (1, 2))
"""All capabilities but those to read and write files of any owner: files are for Landlock to deny."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """That of the running kernel; 0 where it has no Landlock."""
    return max(0, int(_libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def problem() -> str:
    """Why a process cannot be jailed here; empty if it can."""
    if platform.machine() not in _ARCHITECTURES:
        return f"the system calls of {platform.machine()} are not known"
    if not landlock_version():
        return "the kernel has no Landlock (Linux 5.13 with CONFIG_SECURITY_LANDLOCK, and lsm=landlock)"
    if _libc.prctl(22, 2, None, 0, 0) == -1 and ctypes.get_errno() != errno.EFAULT:
        return "the kernel has no filters of system calls (CONFIG_SECCOMP_FILTER)"
    return ""


def apply(readable: Iterable[Path], writable: Iterable[Path], *, memory_bytes: int, file_bytes: int) -> None:
    """Deny this process, for good, all files but these, the system calls of :data:`CALLS`, and what root may do.

    What does not exist is left out.

    Raises:
        UnsupportedError: the kernel cannot do that, or the process has several threads.
        OSError: it refuses.
    """
    if reason := problem():
        raise UnsupportedError(f"this machine has no jail for foreign code: {reason}")
    if len(os.listdir("/proc/self/task")) != 1:
        raise UnsupportedError("a process with several threads cannot be jailed")
    enter_sizes(memory_bytes, file_bytes)
    enter_files(readable, writable)
    _drop_capabilities(_NO_FILES)
    enter_calls()


def enter_sizes(memory_bytes: int, file_bytes: int) -> None:
    """Bound the address space, and each file that is written; no core dump."""
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def enter_apart() -> None:
    """No further privileges, none of :data:`_MACHINES`, and with Landlock: processes that are not started by this one
    can neither be looked into nor, from version 6 on, be signalled, whatever user this is. Files stay as they are.

    Raises as :func:`apply` does.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise UnsupportedError("a process with several threads cannot be set apart")
    _no_new_privileges()
    _drop_capabilities(_MACHINES)
    if version := landlock_version():
        # A rule set must handle something: that device files are made.
        _enforce([1 << 6, 0, 2] if version >= 6 else [1 << 6], ())


def _drop_capabilities(numbers: Iterable[int]) -> None:
    """As root, and in programs that this one starts, too."""
    head, sets = struct.pack("Ii", 0x20080522, 0), (ctypes.c_uint32 * 6)()
    _checked(_libc.capget(head, sets), "capget")
    before = bytes(sets)
    for number in numbers:
        for kind in range(3):  # In force, permitted, inherited.
            sets[number // 32 * 3 + kind] &= ~(1 << number % 32)
        _libc.prctl(24, number, 0, 0, 0)  # It fails where this process may not, and then has none.
    if bytes(sets) != before:
        _checked(_libc.capset(head, sets), "capset")


def enter_files(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Landlock: files beneath ``readable`` may be read, those beneath ``writable`` also made, written and removed."""
    version = landlock_version()
    handled = (1 << _ACCESSES.get(version, 16)) - 1
    # Files; TCP from version 4 on; signals and abstract sockets of others from 6 on.
    attributes = [handled, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]
    accesses = ((readable, _READ & handled), (writable, (_READ | _CHANGE) & handled))
    _enforce(attributes, [(path, access) for paths, access in accesses for path in paths])


def _enforce(attributes: Sequence[int], allowed: Iterable[tuple[Path, int]]) -> None:
    """Deny this thread all that the Landlock ``attributes`` handle, but for the access to the ``allowed`` paths."""
    packed = struct.pack(f"{len(attributes)}Q", *attributes)
    rules = _checked(_libc.syscall(444, packed, ctypes.c_size_t(len(packed)), ctypes.c_uint32(0)), "Landlock")
    try:
        for path, access in allowed:
            _allow(rules, path, access)
        _no_new_privileges()
        _checked(_libc.syscall(446, rules, ctypes.c_uint32(0)), "Landlock")
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            access &= _OF_A_FILE
        rule = struct.pack("=Qi", access, place)
        _checked(_libc.syscall(445, rules, ctypes.c_int(1), rule, ctypes.c_uint32(0)), f"Landlock, {path}")
    finally:
        os.close(place)


def enter_calls(groups: Iterable[str] = CALLS) -> None:
    """Seccomp: the calls of these ``groups`` of :data:`CALLS` fail; of new processes, only threads are possible."""
    column, architecture = _ARCHITECTURES[platform.machine()]
    groups = set(groups)
    denied = sorted(
        number for group in groups for numbers in CALLS[group].values() if (number := numbers[column]) is not None
    )
    load, equal, above, bits, keep, end = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
    fails, unknown, passes = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x7FFF0000
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, 0x80000000), (load, 0, 0, 0)]
    program += [(above, 0, 1, _LAST_KNOWN), (end, 0, 0, unknown)]  # those of x32 as well
    for number in denied:
        program += [(equal, 0, 1, number), (end, 0, 0, fails)]
    if "programs" in groups:
        # The flags of clone must have CLONE_THREAD. Those of clone3 cannot be seen: libraries fall back to clone.
        program += [(equal, 0, 4, _CLONE[column]), (load, 0, 0, 16), (bits, 1, 0, 0x10000), (end, 0, 0, fails)]
        program += [(end, 0, 0, passes), (equal, 0, 1, _CLONE3), (end, 0, 0, unknown)]
    if "processes" in groups:
        # prlimit may read limits, not set them: its third argument, of two halves, is null.
        program += [(equal, 0, 5, _PRLIMIT[column]), (load, 0, 0, 32), (equal, 0, 2, 0), (load, 0, 0, 36)]
        program += [(equal, 1, 0, 0), (end, 0, 0, fails), (load, 0, 0, 0)]
        # fcntl sends no signals: F_SETOWN, F_SETOWN_EX, F_SETSIG.
        program += [(equal, 0, 6, _FCNTL[column]), (load, 0, 0, 24), (equal, 2, 0, 8), (equal, 1, 0, 15)]
        program += [(equal, 0, 1, 10), (end, 0, 0, fails), (end, 0, 0, passes)]
    if "attributes" in groups:
        # Access of the kind 3, for ioctl only, is none that Landlock judges, nor does it before version 3 judge that
        # a file that is opened for reading is emptied (O_TRUNC). The flags of openat2 cannot be seen.
        for place, numbers in enumerate(_OPEN):
            if (number := numbers[column]) is not None:
                program += [(equal, 0, 7, number), (load, 0, 0, 24 + 8 * place), (keep, 0, 0, 0x203)]
                program += [(equal, 3, 0, 0x200), (keep, 0, 0, 3), (equal, 1, 0, 3), (end, 0, 0, passes)]
                program += [(end, 0, 0, fails)]
        program += [(equal, 0, 1, _OPENAT2), (end, 0, 0, unknown)]
        # Others change a file that is only read, freeze its filesystem, or command a device.
        most = len(_HARMLESS)
        program += [(equal, 0, most + 3, _IOCTL[column]), (load, 0, 0, 24)]
        program += [(equal, most - place, 0, number) for place, number in enumerate(_HARMLESS)]
        program += [(end, 0, 0, fails), (end, 0, 0, passes)]
    program.append((end, 0, 0, passes))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    _no_new_privileges()
    filter_ = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    _checked(_libc.prctl(22, 2, filter_, 0, 0), "seccomp")


def _no_new_privileges() -> None:
    _checked(_libc.prctl(38, 1, 0, 0, 0), "no_new_privs")


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result
