#pragma once

// When a rank crashes, lets the launcher read its stack before the process ends, so that the
// launcher can report the function that crashed.
//
// A handler of SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT sends the id of the crashed thread to
// the job's socket (PACELINE_JOB_SOCKET, set by `paceline run`), waits until the launcher has
// read the stack from outside, restores the default action and lets the signal be raised again. So
// the exit signal, its cause and the core dump are the same as without the handler. Nothing is
// unwound or allocated in the crashing process, whose memory may be corrupt. The wait ends when the
// launcher ends, or after 10 s.
//
// A signal that the program handles itself is left alone, whether its handler was installed earlier
// or later than this one. An overflow of the main thread's stack is reported (the handler has a
// stack of its own there); in other threads an overflow ends the process without a report.

#include <functional>
#include <string>

namespace paceline {

// Installs the handler; init_process_group() calls it. Does nothing outside `paceline run`, when
// called a second time, and with PACELINE_CRASH_REPORT=0. Never fails: a crash that cannot be
// reported ends the process as usual. Thread safety: call it from one thread at a time. Only the
// calling thread gets a separate stack for the handler, so call it from main().
void report_crashes_to_launcher() noexcept;

// Lets the launcher read the calling thread's stack as after a crash, for a process that ends
// without a signal (report_uncaught_errors()). Returns at once when there is no launcher. Call it
// only when the process is about to end.
void show_stack_to_launcher() noexcept;

// Sets what a program does when an exception leaves main() or the function of a thread: it prints
// the verdict in one line, with details below, and ends with the exit code that exit_code_of()
// returns (engine/core/error_text.h). The C++ library alone would print two lines, the verdict
// last, and abort (exit code 134).
//
//   error: rank 1: broadcast: root 2 is not a rank of group world, which has 2 ranks
//   error: rank 0: std::runtime_error: no such key: learning_rate
//
// Under `paceline run` the launcher then reads the stack, as after a crash, and repeats the verdict
// in its report. The rank's peers get the verdict as well (LastWords). An exception
// that is not a std::exception, std::terminate() without an exception, and real crashes end the
// process as in any other program.
//
// A static object calls the function before main() in every program that uses init_process_group(),
// so that code before that call, such as loading data, is covered as well. The call has no effect
// when called a second time, when the program has a terminate handler of its own, and when
// PACELINE_CRASH_REPORT=0 is in the environment when the program ends. Thread safety: call it from
// one thread at a time.
void report_uncaught_errors() noexcept;

// Restores the previous terminate handler: for a library that a foreign program loads, such as a
// Python module. Thread safety: as above.
void do_not_report_uncaught_errors() noexcept;

// The text that is printed for an exception of this type and text (typeid().name(), what()); `rank`
// is -1 when it is unknown. LibTorch's list of frames is left out. Thread safety: a pure function.
std::string uncaught_text(const char* type, const std::string& what, int rank);

// Tells the peers of this process why it is about to end with an uncaught exception. Without this
// object, the peers would learn only that its connections closed.
//
// While the object exists, an exception that nothing catches (report_uncaught_errors()) calls `say`
// with the text that is printed, without "error: ". A separate thread makes the call, and the
// process waits for at most 2 s, because the thread that threw may hold any lock. `say` must not
// make or destroy a LastWords. Thread safety: objects may be made and destroyed by any thread.
class LastWords {
 public:
  using Say = std::function<void(const std::string& text)>;

  explicit LastWords(Say say);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

 private:
  const Say say_;

  friend void say_last_words(const std::string& text) noexcept;
};
// Calls the functions of all LastWords objects.
void say_last_words(const std::string& text) noexcept;

}  // namespace paceline
