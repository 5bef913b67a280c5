#pragma once

// Lets the launcher look at a rank that crashes, before the rank is gone: the launcher then says
// where it was, with the names of functions.
//
// How. A handler of SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT tells the job's socket
// (PACELINE_JOB_SOCKET, set by `paceline run`) which thread crashed, waits until the launcher has
// read the stack from outside, puts the default action back and lets the signal strike again: the
// exit signal, its cause and the core dump are those of a program without it. Nothing is unwound,
// allocated or formatted in the crashing process, whose memory may be corrupt. The wait ends with
// the launcher or after 10 s.
//
// A signal that the program handles itself is left alone, before and after. The main thread's stack
// may overflow (the handler has a stack of its own there); in other threads an overflow ends the
// process without a report.

#include <string>

namespace paceline {

// Called by init_process_group(). Does nothing outside `paceline run`, a second time, and with
// PACELINE_CRASH_REPORT=0. Never fails: a crash that cannot be reported ends the process as usual.
// Thread safety: call it from one thread at a time; the thread that calls gets the stack for
// overflows, so call it from main().
void report_crashes_to_launcher() noexcept;

// Lets the launcher read the calling thread's stack as after a crash, for an end without a signal
// (report_uncaught_errors()). Returns at once where there is no launcher to tell. For the process's
// last moments.
void show_stack_to_launcher() noexcept;

// What a program prints when an exception leaves main() or the function of a thread: the verdict in
// one line, details below it, and the exit code of engine/core/error.h, where the C++ library
// would print two lines, the verdict last, and abort (134).
//
//   error: rank 1: broadcast: root 2 is not a rank of group world, which has 2 ranks
//   error: rank 0: std::runtime_error: no such key: learning_rate
//
// Under `paceline run` the launcher then reads the stack, as after a crash, and
// repeats the verdict in its report. An exception that is not a std::exception, a terminate without
// an exception, and real crashes end as in any program.
//
// Happens before main() in every program that calls init_process_group(), so that it holds for what
// comes before that call too: reading arguments, loading data. Without effect a second time, when
// the program has a terminate handler of its own, and with PACELINE_CRASH_REPORT=0 in the
// environment at the end. Thread safety: call it from one thread at a time.
void report_uncaught_errors() noexcept;

// The text that is printed for an exception of this type and text (typeid().name(), what()); `rank`
// is -1 where it is not known. LibTorch's list of frames is left out. Pure.
std::string uncaught_text(const char* type, const std::string& what, int rank);

}  // namespace paceline
