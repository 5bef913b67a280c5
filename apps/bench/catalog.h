#pragma once

// The contestants that are known by name, for collectives and for calls: the program of a rank, how
// ranks are started, and how to get the library when it is missing. The programs are built from
// benchmarks/contestants, each if its library was found, and lie in ../libexec/paceline, seen from
// the command.

#include <string>
#include <vector>

#include "paceline/launcher/process/process.h"

namespace paceline::bench {

enum class Starter {
  kPaceline,  // as `paceline run` starts ranks
  kMpirun,    // Open MPI's
  kMpiexec,   // MPICH's
};

enum class Subject { kCollectives, kCalls };

struct CatalogEntry {
  std::string name;   // "openmpi"
  std::string title;  // "Open MPI"
  Starter starter = Starter::kPaceline;
  std::vector<std::string> launchers;  // programs that start its ranks; the first found is taken
  std::string how_to_get;              // what to install, and that it takes a new build
  // A rank is bound to cores of its own. False for a library whose threads need more than their
  // rank's core: together the ranks still have the same cores as everybody else's.
  bool bound = true;
  bool is_peer = true;
  std::string prefix = "bench-";  // of the program, before the name
};

// "paceline", "memcpy", for collectives "limit", then the peers.
const std::vector<CatalogEntry>& catalog(Subject subject = Subject::kCollectives);
// Null if there is none of that name.
const CatalogEntry* find_entry(const std::string& name, Subject subject = Subject::kCollectives);
// "gloo", "openmpi", "mpich", "oneccl"; for calls "socket", "grpc", "capnp", "torch".
std::vector<std::string> peer_names(Subject subject = Subject::kCollectives);

// Where a contestant's program and launcher are on this machine, or why it cannot take part.
struct Located {
  std::string program;
  std::string launcher;  // for Starter::kPaceline an interpreter, or empty
  std::string missing;   // not empty: it cannot take part; the reason and what to do
};
// `folder` holds the programs, `path` is a value of PATH.
Located locate(const CatalogEntry& entry, const std::string& folder,
               const std::string& path = launcher::own_path());

}  // namespace paceline::bench
