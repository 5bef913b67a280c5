#pragma once

// The options of the rendezvous, at which the processes of a job meet.
//
// Thread safety: a value.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/core/secret.h"
#include "paceline/engine/store/store.h"

namespace paceline {

struct RendezvousOptions {
  std::string init_method = "env://";
  std::optional<int> rank = {};  // set with world_size or not at all; overrides the environment
  std::optional<int> world_size = {};
  std::shared_ptr<Store> store = {};  // needs rank and world_size; replaces init_method
  std::optional<Secret> secret = {};  // overrides PACELINE_SECRET_FD and PACELINE_SECRET_FILE
  std::chrono::milliseconds timeout = Store::kDefaultTimeout;
};

}  // namespace paceline
