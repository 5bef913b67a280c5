#pragma once

// Which object a reference refers to.

#include <cstdint>
#include <string>
#include <tuple>

namespace paceline::rpc {

// Of the objects of one owner: chosen at random by the worker that creates it, never used twice.
using ObjectNumber = std::uint64_t;

struct ObjectId {
  std::string owner;        // a worker's name
  std::string incarnation;  // of that worker: the epoch
  ObjectNumber number = 0;
  static auto fields(auto& self) { return std::tie(self.owner, self.incarnation, self.number); }
  auto operator<=>(const ObjectId&) const = default;
};

}  // namespace paceline::rpc
