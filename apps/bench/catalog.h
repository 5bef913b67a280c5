#pragma once

// The contestants that are known by name, for collectives and for calls: the program of a rank, how
// ranks are started, and how to get the library if it is missing. Each program is built from
// benchmarks/contestants if its library was found, and is installed in ../libexec/paceline,
// relative to the command.

#include <string>
#include <vector>

#include "paceline/launcher/process/program_file.h"

namespace paceline::bench {

enum class Starter {
  kPaceline,  // as `paceline run` starts ranks
  kMpirun,    // by Open MPI's mpirun
  kMpiexec,   // by MPICH's mpiexec
};

enum class Subject { kCollectives, kCalls };

struct CatalogEntry {
  std::string name;   // "openmpi"
  std::string title;  // "Open MPI"
  Starter starter = Starter::kPaceline;
  std::vector<std::string> launchers;  // programs that start its ranks; the first one found is used
  std::string how_to_get;              // what to install, and what to rebuild
  // Whether each rank is bound to cores of its own. False for a library whose threads need more
  // than one core per rank; its ranks may use all cores.
  bool bound = true;
  bool is_peer = true;            // another library; false for Paceline, "memcpy" and "limit"
  std::string prefix = "bench-";  // the program's name is this prefix and `name`
};

// The entries "paceline", "memcpy" and, for collectives, "limit"; then the peers.
const std::vector<CatalogEntry>& catalog(Subject subject = Subject::kCollectives);
// The entry of that name; null if there is none.
const CatalogEntry* find_entry(const std::string& name, Subject subject = Subject::kCollectives);
// The names of the peers: "gloo", "openmpi", "mpich", "oneccl"; for calls "socket", "grpc",
// "capnp", "torch".
std::vector<std::string> peer_names(Subject subject = Subject::kCollectives);

// The paths of a contestant's program and launcher on this machine, or the reason why it cannot
// take part.
struct Located {
  std::string program;
  std::string launcher;  // with Starter::kPaceline: an interpreter, or empty
  std::string missing;   // why it cannot take part, and what to do; empty if it can
};
// `folder` contains the programs, `path` is a value of PATH.
Located locate(const CatalogEntry& entry, const std::string& folder,
               const std::string& path = launcher::own_path());

}  // namespace paceline::bench
