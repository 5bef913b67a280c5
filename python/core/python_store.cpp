#include "python/core/python_store.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline::python {

namespace nb = nanobind;

namespace {

constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{50};

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

// A store returns bytes; a store written in Python may return text.
std::string text_of(const nb::object& value) {
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  const auto bytes = nb::cast<nb::bytes>(value);
  return {bytes.c_str(), bytes.size()};
}

std::vector<std::string> with_prefix(std::vector<std::string> keys) {
  for (std::string& key : keys) key.insert(0, "paceline/");
  return keys;
}

[[noreturn]] void throw_broken(const nb::python_error& error) {
  throw Error(ErrorCode::kPeerLost,
              std::string("the store in which the ranks meet failed: ") + error.what() +
                  "; see the output of the rank that hosts it, usually rank 0");
}

}  // namespace

PythonStore::~PythonStore() {
  const nb::gil_scoped_acquire gil;
  store_.reset();
}

StoreReply PythonStore::run(const StoreRequest& request) {
  StoreRequest longer = request;
  longer.keys = with_prefix(request.keys);
  if (request.waits()) {
    const std::chrono::milliseconds timeout(request.number);
    wait_for(longer.keys, timeout);
  }
  const nb::gil_scoped_acquire gil;
  try {
    return apply(longer);
  } catch (const nb::python_error& error) {
    throw_broken(error);
  }
}

// Requires the GIL.
StoreReply PythonStore::apply(const StoreRequest& request) {
  StoreReply reply;
  const auto& keys = request.keys;
  const auto& values = request.values;
  switch (request.command) {
    case StoreCommand::kSet:
      for (std::size_t i = 0; i < keys.size(); ++i)
        store_.attr("set")(keys[i], bytes_of(values[i]));
      break;
    case StoreCommand::kGet:
      for (const std::string& key : keys) reply.values.push_back(text_of(store_.attr("get")(key)));
      break;
    case StoreCommand::kAdd:
      reply.number = nb::cast<std::int64_t>(store_.attr("add")(keys[0], request.number));
      break;
    case StoreCommand::kCompareSet:
      reply.values.push_back(
          text_of(store_.attr("compare_set")(keys[0], bytes_of(values[0]), bytes_of(values[1]))));
      break;
    case StoreCommand::kAppend:
      store_.attr("append")(keys[0], bytes_of(values[0]));
      break;
    case StoreCommand::kDelete:
      reply.number = nb::cast<bool>(store_.attr("delete_key")(keys[0])) ? 1 : 0;
      break;
    case StoreCommand::kCheck:
      reply.number = has(keys) ? 1 : 0;
      break;
    case StoreCommand::kNumKeys:
      reply.number = nb::cast<std::int64_t>(store_.attr("num_keys")());
      break;
    case StoreCommand::kWait:
      break;
  }
  return reply;
}

// Requires the GIL.
bool PythonStore::has(const std::vector<std::string>& keys) {
  return nb::cast<bool>(store_.attr("check")(keys));
}

// Asks the store repeatedly, at first often. A store's own wait() may count in whole seconds,
// cannot be interrupted, and reports a timeout and a broken store by exceptions that differ from
// one version of torch to the next.
void PythonStore::wait_for(const std::vector<std::string>& keys,
                           std::chrono::milliseconds timeout) {
  auto deadline = Deadline::after(timeout);
  auto pause = kFirstPause;
  for (Vigil vigil;;) {
    WaitCheck::run();
    {
      const nb::gil_scoped_acquire gil;
      try {
        if (has(keys)) return;
      } catch (const nb::python_error& error) {
        throw_broken(error);
      }
    }
    if (vigil.sees_passed(deadline)) throw missing_keys_error(keys, timeout);
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, deadline.remaining()));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace paceline::python
