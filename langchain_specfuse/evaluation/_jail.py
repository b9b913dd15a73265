"""What runs inside the sandbox's process: takes its own rights away, then runs a program that a model wrote.

Started by ``sandbox`` as a script of its own; imports nothing of the package. The parent sends one line of JSON: the
program, the limits, and a word that nobody else knows. The word comes back only when the program has run to its end, so
``sys.exit(0)`` in the middle proves nothing.
"""

import json
import os
import sys

NOBODY = 65534
FORBIDDEN = ("socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill")
FORBIDDEN_TOO = ("resource.setrlimit", "resource.prlimit", "ctypes.", "pty.", "webbrowser.")
"""Events of the interpreter that begin so are refused."""
CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"}
CHANGES |= {"os.mkdir", "shutil.rmtree", "shutil.move"}
"""Events that change files: allowed inside the folder."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def alone(folder: str) -> None:
    """No network (a namespace of its own, where the system gives one) and nobody's rights (where we are root)."""
    try:
        import ctypes

        ctypes.CDLL(None).unshare(0x40000000)  # CLONE_NEWNET; without the right to it, the guard below must do
    except (ImportError, OSError, AttributeError):
        pass
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        readable = os.access(os.__file__, os.R_OK, effective_ids=True)
        os.seteuid(0)
        os.setegid(0)
        if readable:  # else the program could not even import the standard library
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)


def bounded(limits: dict[str, int]) -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system: the parent's clock is all there is
        return
    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is not None:
            try:
                resource.setrlimit(kind, (value, value))
            except (ValueError, OSError):
                pass


def guarded(folder: str) -> None:
    """From here on the interpreter itself refuses processes, sockets, and writing outside the folder."""
    inside = os.path.realpath(folder)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(FORBIDDEN + FORBIDDEN_TOO):
            raise PermissionError(f"not allowed here: {event}")
        if (event in CHANGES or (event == "open" and _writes(*arguments))) and not _inside(arguments[0], inside):
            raise PermissionError(f"not allowed here: {event} {arguments[0]!r}")

    sys.addaudithook(watch)


def _writes(_: object, mode: object = None, flags: object = 0) -> bool:
    return any(letter in str(mode or "") for letter in "wax+") or (isinstance(flags, int) and bool(flags & WRITING))


def _inside(path: object, folder: str) -> bool:
    """Whether this lies in the folder; a file that is open already (a number) has been looked at before."""
    if isinstance(path, int):
        return True
    return os.path.realpath(os.fsdecode(path)).startswith(folder)  # type: ignore[arg-type]


def main() -> None:
    told = json.loads(sys.stdin.readline())
    answer = os.dup(1)
    sys.stdin.close()
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    folder = os.getcwd()
    alone(folder)
    bounded(told["limits"])
    word, program = told.pop("word"), told.pop("program")
    guarded(folder)
    try:
        exec(compile(program, "<answer>", "exec"), {"__name__": "__main__"})
        os.write(answer, word.encode())
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        os.write(answer, ("!" + reason).encode(errors="replace"))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
