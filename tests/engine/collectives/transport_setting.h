#pragma once

// A transport and a number of ranks, for suites that run over several of both.

#include <string>
#include <vector>

#include "paceline/engine/transport/wire.h"

#include "tests/harness/thread_ranks.h"

namespace paceline {

struct TransportSetting {
  TransportKind transport;
  int world;
};

inline std::string name_of(const TransportSetting& setting) {
  return std::string(name_of(setting.transport)) + "_" + std::to_string(setting.world);
}

// The settings for which every mismatch must be an error on every rank.
inline std::vector<TransportSetting> mismatch_settings() {
  std::vector<TransportSetting> settings;
  for (const auto transport :
       {TransportKind::kLoopback, TransportKind::kShm, TransportKind::kTcp}) {
    for (const int world : {2, 3, 4}) settings.push_back({transport, world});
  }
  return settings;
}

}  // namespace paceline
