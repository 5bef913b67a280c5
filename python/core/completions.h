#pragma once

// Python functions that are called when operations have completed. The engine's threads must not
// wait for the GIL, so an engine thread only notes here that an operation has completed, and a
// thread of Python, which waits in next(), calls the function.
//
// Ownership: the object owns a reference to every function that next() has not returned yet.
//
// Thread safety: watch() and next() need the GIL, which next() gives up while it waits.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

#include <nanobind/nanobind.h>

#include "paceline/engine/collectives/work.h"

namespace paceline::python {

class Completions {
 public:
  // next() will return `function` once `work` has completed, perhaps at once.
  void watch(Work& work, nanobind::object function);
  // Waits for a completion and returns its function; after close(), None once no function is left.
  // Several threads may wait, because a thread that calls such a function may block in it.
  nanobind::object next();
  // The number of threads that wait in next().
  std::size_t num_waiting() const;
  // Ends all waits; later completions are dropped.
  void close();

 private:
  struct State {
    mutable std::mutex mutex;  // guards the members below
    std::condition_variable changed;
    std::deque<PyObject*> completed;
    std::size_t num_waiting = 0;
    bool is_closed = false;
  };
  // Owners: this object, and the operations that are being watched.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace paceline::python
