#pragma once

// A store of torch.distributed, or any Python object with its methods, as a Store of the engine:
// set, get, add, compare_set, append, delete_key, check, num_keys. The keys get the prefix
// "paceline/", so that they collide with no other use of the store.
//
// A wait for keys asks the store repeatedly whether they are set: at first after 1 ms, later 20
// times a second. So Ctrl-C ends the wait (WaitCheck), and the wait has a time limit of its own,
// independent of the store's.
//
// Errors: kTimeout when keys are not set in time; kPeerLost, with the text of Python's exception,
// when the store fails otherwise.
//
// Thread safety: as Store; every call takes the GIL. May be destroyed on any thread.

#include <nanobind/nanobind.h>

#include "paceline/engine/store/store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline::python {

class PythonStore final : public Store {
 public:
  explicit PythonStore(nanobind::object store) : store_(std::move(store)) {}
  ~PythonStore() override;
  PythonStore(const PythonStore&) = delete;
  PythonStore& operator=(const PythonStore&) = delete;

  StoreReply run(const StoreRequest& request) override;

 private:
  StoreReply apply(const StoreRequest& request);
  bool has(const std::vector<std::string>& keys);
  void wait_for(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);

  nanobind::object store_;
};

}  // namespace paceline::python
