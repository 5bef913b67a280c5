#include "python/core/completions.h"

namespace paceline::python {

namespace nb = nanobind;

void Completions::watch(Work& work, nb::object function) {
  work.on_complete([state = state_, waiting = function.release().ptr()](const Error* /*error*/) {
    {
      const std::lock_guard lock(state->mutex);
      if (state->is_closed) return;  // leaks the reference, because this thread has no GIL
      state->completed.push_back(waiting);
    }
    state->changed.notify_one();
  });
}

nb::object Completions::next() {
  PyObject* function = nullptr;
  {
    const nb::gil_scoped_release release;
    std::unique_lock lock(state_->mutex);
    ++state_->num_waiting;
    state_->changed.wait(lock, [&] { return state_->is_closed || !state_->completed.empty(); });
    --state_->num_waiting;
    if (!state_->completed.empty()) {
      function = state_->completed.front();
      state_->completed.pop_front();
    }
  }
  return function == nullptr ? nb::none() : nb::steal(function);
}

std::size_t Completions::num_waiting() const {
  const std::lock_guard lock(state_->mutex);
  return state_->num_waiting;
}

void Completions::close() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closed = true;
  }
  state_->changed.notify_all();
}

}  // namespace paceline::python
