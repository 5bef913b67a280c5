"""The threads that complete futures.

An engine's thread must not wait for the GIL, so it only notes that an operation has completed. Threads of this module wait for such notes
and complete the futures. The callbacks of a future may themselves wait for other futures (PowerSGD's do), so there is always a thread
that waits for the next completion: a thread that is about to complete a future starts another one if no thread waits.
"""

import atexit
import os
import threading

from paceline import _core

_lock = threading.Lock()  # guards the three variables below, and the start of a thread
_threads = []
_has_ended = False  # no thread may start any more
_process = None  # the process to which the threads belong: a child of fork() has none of them
_groups = []  # all groups: they must be left before the interpreter ends, and torch calls them even after that

_MOST_IDLE = 2
_MOST_AT_THE_END = 20  # seconds, for a callback that is still running; on a busy machine a thread needs some to end


def _serve():
    while True:
        function = _core.next_completion()
        if function is None:
            return
        if _core.num_waiting_for_completions() == 0:
            _start_thread()
        function()
        del function
        if _core.num_waiting_for_completions() >= _MOST_IDLE:
            with _lock:
                _threads.remove(threading.current_thread())
            return


def _start_thread():
    thread = threading.Thread(target=_serve, name="paceline-futures", daemon=True)
    with _lock:
        if _has_ended:
            return
        _threads.append(thread)
        thread.start()


def ensure_thread():
    """Starts the first thread. Called before an operation is watched."""
    global _process
    with _lock:
        if _process == os.getpid():
            return
        _process = os.getpid()
        _threads.clear()
    _start_thread()


def leave_at_exit(group):
    """Closes `group` before the interpreter ends: threads that use Python's objects must not run after that. The object itself, which is
    small once it is closed, is kept: its C++ half may live longer than torch's references to it."""
    _groups.append(group)


@atexit.register
def _end():
    """Ends all threads: one that asks for the GIL after the end of the interpreter aborts the process, because it must leave C++ then."""
    global _has_ended
    for group in _groups:
        group.close()
    _core.close_completions()
    if _process != os.getpid():
        return
    with _lock:
        _has_ended = True
        threads = list(_threads)
    for thread in threads:
        thread.join(timeout=_MOST_AT_THE_END)
