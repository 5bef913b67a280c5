#pragma once

// What a program prints when an exception leaves main() or the function of a thread: the verdict in
// one line, details below it, and the exit code of engine/core/exit_code.h, where the C++ library
// would print two lines, the verdict last, and abort (134).
//
//   error: rank 1: broadcast: root 2 is not a rank of group world, which has 2 ranks
//   error: rank 0: std::runtime_error: no such key: learning_rate
//
// Under `paceline run` the launcher then reads the stack, as after a crash (crash_reporter.h), and
// repeats the verdict in its report. An exception that is not a std::exception, a terminate without
// an exception, and real crashes end as in any program.

#include <string>

namespace paceline {

// Happens before main() in every program that calls init_process_group(), so that it holds for what
// comes before that call too: reading arguments, loading data. Without effect a second time, when
// the program has a terminate handler of its own, and with PACELINE_CRASH_REPORT=0 in the
// environment at the end. Thread safety: call it from one thread at a time.
void report_uncaught_errors() noexcept;

// What is printed for an exception of this type and text (typeid().name(), what()); `rank` is -1
// where it is not known. LibTorch's list of frames is left out. Pure.
std::string uncaught_text(const char* type, const std::string& what, int rank);

}  // namespace paceline
