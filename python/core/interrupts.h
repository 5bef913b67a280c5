#pragma once

// Makes calls to the engine that may wait, for Python. A call does not hold the GIL, so that other
// threads of Python run meanwhile. While the call waits, Python's signal handlers run, so that
// Ctrl-C ends the call with a KeyboardInterrupt.
//
// Thread safety: without_gil() needs the GIL. Only Python's main thread handles signals.

#include <chrono>
#include <optional>

#include <nanobind/nanobind.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/error.h"

namespace paceline::python {

// Whether this thread is the one in which Python handles signals.
bool is_main_thread();
// Called once, when the module is imported.
void remember_main_thread();

// Lets Python handle the signals that have arrived. Keeps the exception that a handler raised.
class Interrupts {
 public:
  // Throws Error(kAborted) if a signal handler raised an exception. Takes the GIL by itself.
  void look();
  // The exception that a handler raised. Needs the GIL.
  const std::optional<nanobind::python_error>& raised() const { return raised_; }

 private:
  std::chrono::steady_clock::time_point next_look_{};
  std::optional<nanobind::python_error> raised_;
};

// Calls `body` without the GIL. If a signal handler raises during a wait of `body`, calls
// `interrupted` without the GIL, and throws what the handler raised. Otherwise throws what `body`
// throws.
template <class Body, class Interrupted>
void without_gil(Body&& body, Interrupted&& interrupted) {
  Interrupts interrupts;
  try {
    const nanobind::gil_scoped_release release;
    std::optional<WaitCheck> check;
    if (is_main_thread()) check.emplace([&] { interrupts.look(); });
    body();
  } catch (...) {
    if (!interrupts.raised()) throw;
    const nanobind::gil_scoped_release release;
    interrupted();
  }
  if (interrupts.raised()) throw nanobind::python_error(*interrupts.raised());
}

}  // namespace paceline::python
