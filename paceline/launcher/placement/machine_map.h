#pragma once

// The machine as a tree with the ranks that may run on each core, and drawings of it as text and as
// SVG.
//
// Thread safety: pure functions.

#include <string>
#include <vector>

#include "paceline/launcher/placement/placement.h"

namespace paceline::launcher {

struct MappedCore {
  Core core;                // with all its cpus, also those not given to this process
  std::vector<bool> given;  // for each of core.cpus: whether it is given to this process
  std::vector<int> ranks;   // local ranks that may run on one of its cpus

  bool is_given() const;  // whether at least one of its cpus is given
  // The ranks as text: "3", "0,1" or "0-7"; "" for a core without ranks.
  std::string rank_text() const;
};

struct MappedCache {
  std::string name;  // "L3 32 MiB"; empty when the machine reports no caches
  std::vector<MappedCore> cores;
};

struct MappedNode {
  std::string name;  // "NUMA node 0, 62 GiB"
  std::vector<MappedCache> caches;
};

struct MappedPackage {
  std::string name;  // "package 0"
  std::vector<MappedNode> nodes;
};

// `placement`: null if there is none. Without a placement, or with one that binds no rank, no core
// has ranks.
std::vector<MappedPackage> map_machine(const Topology& topology, const Placement* placement);

// A text such as "16 cores, 32 cpus, 2 packages, 2 NUMA nodes, 4 L3 caches", and the part that is
// given to this process.
std::string describe_machine(const Topology& topology);

// The machine as lines of text: a block for each cache, a column for each core; then each rank's
// cpus and the reasons for the placement.
std::string draw_machine_text(const Topology& topology, const Placement* placement);

// As above, as one SVG file, which refers to no other file.
std::string draw_machine_svg(const Topology& topology, const Placement* placement);

}  // namespace paceline::launcher
