#pragma once

// The machine as a tree, with the ranks that may run on each core; drawn as text and as SVG.
//
// Pure.

#include <string>
#include <vector>

#include "paceline/launcher/placement/placement.h"

namespace paceline::launcher {

struct MappedCore {
  Core core;                // with all its cpus, given or not
  std::vector<bool> given;  // by index in core.cpus
  std::vector<int> ranks;   // local ranks that may run on one of its cpus

  bool is_given() const;  // in part at least
  // "" for a core without ranks, "3", "0,1" or "0-7".
  std::string rank_text() const;
};

struct MappedCache {
  std::string name;  // "L3 32 MiB"; empty when the machine shows no caches
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

// Without a placement, or with one that binds no rank, no core has ranks.
std::vector<MappedPackage> map_machine(const Topology& topology, const Placement* placement);

// "16 cores, 32 cpus, 2 packages, 2 NUMA nodes, 4 L3 caches", and the part given to this process.
std::string describe_machine(const Topology& topology);

// The machine in lines of text: a block per cache, a column per core; then each rank's cpus and the
// reasons.
std::string draw_machine_text(const Topology& topology, const Placement* placement);

// The same as one SVG file, which needs nothing else.
std::string draw_machine_svg(const Topology& topology, const Placement* placement);

}  // namespace paceline::launcher
