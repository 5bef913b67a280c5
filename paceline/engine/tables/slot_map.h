#pragma once

// Assigns slots to servers. The map is a list of servers and an epoch: server i of n has the slots
// from 1,024 i / n up to 1,024 (i + 1) / n. The job's store has the newest map; its epoch grows
// when a job opens its tables with other servers. A server refuses a request that carries another
// epoch than its own, or an id whose slot it does not have.
//
// Thread safety: values; const methods.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/store/store.h"
#include "paceline/engine/tables/row_options.h"

namespace paceline::tables {

struct SlotMap {
  std::uint64_t epoch = 0;
  std::vector<std::string> servers;

  // The number of the server that has the row of this id.
  std::size_t owner(Id id) const;

  // The map with these servers in the job's store, which is written if the newest map has others.
  // Throws Error(kInvalid) for a list that is empty, longer than 1,024, or has a name twice; errors
  // of the store.
  static SlotMap agree(Store& store, const std::vector<std::string>& servers);
};

}  // namespace paceline::tables
