#include "python/core/interrupts.h"

namespace paceline::python {

namespace nb = nanobind;

namespace {

constexpr std::chrono::milliseconds kPause{100};  // the GIL is not taken more often

unsigned long main_thread = 0;  // Python's identifier

}  // namespace

bool is_main_thread() { return PyThread_get_thread_ident() == main_thread; }

void remember_main_thread() {
  const nb::module_ threading = nb::module_::import_("threading");
  main_thread = nb::cast<unsigned long>(threading.attr("main_thread")().attr("ident"));
}

void Interrupts::look() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + kPause;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  raised_.emplace();
  throw Error(ErrorCode::kAborted, "a signal interrupted this rank (Ctrl-C)");
}

}  // namespace paceline::python
